"""The network use of a claim by clients on other machines: taken from samples, shown by the API and on its page."""

import uuid
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from agent import wire
from apps.nodes.services.telemetry import storing
from apps.nodes.services.telemetry.storing import Measured
from apps.remote import figures
from apps.scheduling.gateway import Gateway
from apps.scheduling.models import Assignment, Claim
from tests.cast import Cast, Machine, cast, give_plenty, placed
from tests.pages.conftest import SignIn, browser

__all__ = ["browser", "cast"]

USE: dict[str, Any] = {
    "connections": 2, "received_bytes": 5_000_000, "sent_bytes": 900_000_000, "round_trips": 1200,
    "received_bytes_per_second": 1_500_000.0, "sent_bytes_per_second": 30_000_000.0, "round_trips_per_second": 400.0,
    "trip_ms": 0.4,
}  # fmt: skip


@pytest.fixture
def running(cast: Cast) -> Iterator[tuple[Machine, Claim, Assignment]]:
    give_plenty(cast.acme)
    machine = Machine("gpu1", cast.pool).stay_online()
    claim, row = placed(cast, machine)
    yield machine, claim, row
    figures._redis().delete(figures._key(claim.uid))


def sample(uid: object, **more: Any) -> wire.AssignmentUsage:
    facts = {"core_percent": 1.0, "core_limit_percent": 50, "throttled_percent": 0.0, "processes": 1}
    return wire.AssignmentUsage(uid=str(uid), memory_bytes=1, memory_limit_bytes=2, **facts | more)


def report(machine: Machine, *items: wire.AssignmentUsage) -> None:
    measured = Measured(storing.source_of(machine.node), wire.Usage(seq=1, at=1e9, gpus=[], assignments=list(items)))
    storing._learn_what_is_carried([measured])
    Gateway().measured([measured])


def test_a_sample_is_shown_by_the_api_and_on_the_page(cast: Cast, running: Any, browser: SignIn) -> None:
    machine, claim, row = running
    path = f"claims/{claim.uid}/remote/"
    assert cast.vera.get(path).body == dict.fromkeys(USE), "it has no clients"
    assert "Trip there and back" not in browser("vera").get(f"/claims/{claim.uid}/").content.decode()
    report(machine, sample(row.uid, remote=wire.RemoteUse(**USE)))
    assert cast.vera.get(path).body == USE
    page = " ".join(browser("vera").get(f"/claims/{claim.uid}/").content.decode().split())
    assert "2 connections" in page
    assert "400 a second" in page
    assert "0.4 ms" in page


def test_strangers_see_nothing(cast: Cast, running: Any) -> None:
    _, claim, _ = running
    assert cast.gus.get(f"claims/{claim.uid}/remote/").status == 404


def test_a_node_says_nothing_about_claims_of_others(cast: Cast, running: Any) -> None:
    _, claim, row = running
    other = Machine("gpu2", cast.pool).stay_online()
    report(other, sample(row.uid, remote=wire.RemoteUse(**USE)), sample(uuid.uuid4(), remote=wire.RemoteUse(**USE)))
    assert figures.read(claim.uid) is None


def test_without_redis_nothing_is_kept_and_nothing_fails(
    cast: Cast, running: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine, claim, row = running
    with monkeypatch.context() as away:
        away.setattr(figures, "_redis", lambda: redis.Redis(port=1, socket_connect_timeout=0.2))
        report(machine, sample(row.uid, remote=wire.RemoteUse(**USE)))
        assert cast.vera.get(f"claims/{claim.uid}/remote/").body == dict.fromkeys(USE)
