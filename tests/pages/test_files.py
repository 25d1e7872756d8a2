"""Exports of tables: all rows, and only those that the reader may see."""

import csv
import io
import json
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from apps.quotas.principals import SYSTEM
from apps.reservations.lifecycle import create_reservation
from apps.scheduling.models import Proposal, Round
from apps.scheduling.services.cycles.rounds import run_round
from tests.cast import Cast, Machine, ask, placed
from tests.pages.conftest import SignIn


@pytest.fixture
def furnish(cast: Cast, machine: Machine) -> Cast:
    """Create a running claim and a queued one, a reservation, a proposal; and another claim of globex."""
    claim, _ = placed(cast, machine, name="train", core_request=10)
    ask(cast, name="theirs", core_request=5, tenant=cast.globex)
    ask(cast, name="too-wide", gpu_count=4, core_request=100)
    run_round(cast.pool)
    machine.obey()
    begin = timezone.now() + timedelta(days=1)
    create_reservation(
        principal=SYSTEM, tenant=cast.acme, pool=cast.pool, name="exam", core_request=5, memory_mib=256,
        start_at=begin, end_at=begin + timedelta(hours=1),
    )  # fmt: skip
    Proposal.objects.create(
        pool=cast.pool, claim=claim, kind="limit", policy="idle", before={"core_limit": 50}, after={"core_limit": 30},
        explanation="idle",
    )  # fmt: skip
    return cast


def rows(client: Client, path: str) -> list[dict[str, Any]]:
    """Return the rows of the JSON; the CSV has as many, under the same names."""
    joint = "&" if "?" in path else "?"
    found: list[dict[str, Any]] = json.loads(client.get(f"{path}{joint}format=json").content)
    answer = client.get(f"{path}{joint}format=csv")
    assert answer["Content-Disposition"].startswith("attachment")
    table = csv.DictReader(io.StringIO(answer.content.decode()))
    assert len(list(table)) == len(found)
    assert not found or list(table.fieldnames or ()) == list(found[0])
    return found


def test_claims_and_the_queue_are_files_of_what_one_may_see(furnish: Cast, browser: SignIn) -> None:
    olga, vera, gus = browser("olga"), browser("vera"), browser("gus")
    assert {row["name"] for row in rows(olga, "/claims/")} == {"train", "theirs", "too-wide"}
    (train,) = (row for row in rows(vera, "/claims/?state=active") if row["name"] == "train")
    assert (train["tenant"], train["core_request"], train["gpus"]) == ("acme", 10, ["gpu1/0"])
    assert [row["name"] for row in rows(gus, "/claims/")] == ["theirs"]
    (waits,) = rows(vera, "/queue/")
    assert (waits["place"], waits["name"]) == (1, "too-wide")
    assert "fit on one node" in " ".join(waits["reasons"])
    assert rows(gus, "/queue/") == []


def test_reservations_and_proposals_are_files_of_what_one_may_see(furnish: Cast, browser: SignIn) -> None:
    vera, gus = browser("vera"), browser("gus")
    (exam,) = rows(vera, "/reservations/")
    assert (exam["name"], exam["tenant"], len(exam["gpus"])) == ("exam", "acme", 1)
    (found,) = rows(vera, "/proposals/")
    assert (found["claim"], found["after"]) == ("train", {"core_limit": 30})
    assert rows(vera, "/proposals/?state=applied") == rows(gus, "/reservations/") == rows(gus, "/proposals/") == []


def test_pools_and_rounds_are_an_operators_files(furnish: Cast, browser: SignIn) -> None:
    olga, latest = browser("olga"), Round.objects.latest("pk")
    (pool,) = rows(olga, "/pools/")
    assert (pool["pool"], pool["gpu_count"]) == ("default", 4)
    assert rows(olga, "/rounds/")[0]["round"] == latest.pk
    decisions = {tuple(row["gpus"] or ()) for row in rows(olga, f"/rounds/{latest.pk}/")}
    assert () in decisions
    for path in ("/pools/", "/rounds/", f"/rounds/{latest.pk}/", "/clusters/"):
        assert browser("anna").get(f"{path}?format=csv").status_code == 403
