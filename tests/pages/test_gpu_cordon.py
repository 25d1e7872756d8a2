"""The cordon of a single GPU: no new claims, true reasons, running claims stay; by page and REST."""

from typing import Any

import pytest

from apps.nodes.models import Gpu
from apps.quotas.models import AuditEvent
from apps.scheduling.models import Claim
from apps.scheduling.services.cycles.commits import _Transaction
from apps.scheduling.services.cycles.rounds import run_round
from tests.cast import Cast, Machine, ask, gpu_uuid, placed
from tests.pages.conftest import SignIn


def cordon(cast: Cast, machine: Machine, *indexes: int, cordoned: bool = True) -> None:
    for index in indexes:
        answer = cast.olga.patch(f"gpus/{gpu_uuid(machine.name, index)}/", {"cordoned": cordoned})
        assert answer.status == 200, answer.body


def test_a_cordoned_gpu_takes_no_new_claims_and_its_claims_stay(cast: Cast, machine: Machine) -> None:
    claim, item = placed(cast, machine, core_request=30)
    cordon(cast, machine, 0, 1, 2, 3)
    waiting = ask(cast, core_request=10)
    run_round(cast.pool)
    waiting.refresh_from_db()
    assert waiting.state == "queued"
    (reason,) = cast.max.get(f"claims/{waiting.uid}/").body["reasons"]
    assert (reason["code"], reason["gpus"]) == ("gpu-cordoned", 4)
    assert reason["detail"] == "4 GPUs are cordoned"
    # The claim on it can still grow.
    assert cast.max.patch(f"claims/{claim.uid}/", {"core_request": 40, "core_limit": 40}).status == 200
    item.refresh_from_db()
    assert (item.core_request, item.state == "released") == (40, False)
    cordon(cast, machine, 2, cordoned=False)
    run_round(cast.pool)
    waiting.refresh_from_db()
    assert waiting.assignments.get().gpu.index == 2


def test_a_cordon_between_decision_and_commit_is_respected(
    cast: Cast, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim = ask(cast, core_request=10)
    choose = _Transaction._choose

    def cordon_first(self: Any, picks: Any) -> None:
        Gpu.objects.update(cordoned=True)
        choose(self, picks)

    monkeypatch.setattr(_Transaction, "_choose", cordon_first)
    run_round(cast.pool)
    claim.refresh_from_db()
    assert not claim.assignments.exists()


def test_only_operators_cordon_and_each_change_is_audited_once(cast: Cast, machine: Machine) -> None:
    path = f"gpus/{gpu_uuid('gpu1', 1)}/"
    assert cast.anna.patch(path, {"cordoned": True}).status == 403
    first = cast.olga.patch(path, {"cordoned": True})
    assert (first.body["cordoned"], first.body["state"]) == (True, "cordoned")
    assert cast.olga.patch(path, {"cordoned": True}, If_Match=first.headers["ETag"]).status == 200
    assert cast.olga.patch(path, {"cordoned": False}, If_Match='"1"').status == 412
    for body in ({}, {"cordoned": "perhaps"}, {"cordoned": None}, {"cordoned": True, "model": "B200"}):
        assert cast.olga.patch(path, body).status == 400, body
    rows = AuditEvent.objects.filter(action__startswith="gpu.").values_list("action", "object_id", "after")
    assert list(rows) == [("gpu.cordon", "gpu1", {"gpu": gpu_uuid("gpu1", 1), "index": 1})]
    listed = cast.olga.get("gpus/?cordoned=true").body["results"]
    assert [row["index"] for row in listed] == [1]
    assert cast.olga.get("gpus/?node=gpu1&index=1").body["results"] == listed


def test_the_page_previews_the_cordon_and_does_it(cast: Cast, machine: Machine, browser: SignIn) -> None:
    placed(cast, machine, core_request=30)
    index = Claim.objects.get().assignments.get().gpu.index
    path, olga = f"/gpus/{gpu_uuid('gpu1', index)}/", browser("olga")
    ask(cast, core_request=60)
    ask(cast, core_request=90)
    page = " ".join(olga.get(path).content.decode().split())
    for words in (
        "Cordon…",
        "70 % core and",
        "1 claim on it stays, keeps running",
        "1 pending claim fits its free share",
    ):
        assert words in page
    assert "It is the last schedulable" not in page
    answer = olga.post(f"{path}cordon/", {"cordoned": "yes"}, follow=True).content.decode()
    assert f"GPU {index} of gpu1 takes no new claims" in answer
    assert "Uncordon…" in answer
    assert 'data-state="cordoned"' in olga.get("/gpus/?state=cordoned").content.decode()
    assert 'data-state="cordoned"' in olga.get("/nodes/gpu1/").content.decode()
    assert "takes new claims again" in olga.post(f"{path}cordon/", {"cordoned": "no"}, follow=True).content.decode()
    assert browser("anna").post(f"{path}cordon/", {"cordoned": "yes"}).status_code in (302, 403, 404)
    assert not machine.gpu(index).cordoned


def test_the_last_gpu_of_its_model_is_pointed_out(cast: Cast, machine: Machine, browser: SignIn) -> None:
    cordon(cast, machine, 1, 2, 3)
    assert "It is the last schedulable" in browser("olga").get(f"/gpus/{gpu_uuid('gpu1', 0)}/").content.decode()


def test_a_dry_run_counts_what_the_cordon_affects_and_changes_nothing(cast: Cast, machine: Machine) -> None:
    _, item = placed(cast, machine, core_request=30)
    ask(cast, core_request=60)
    path = f"gpus/{item.gpu.uuid}/"
    answer = cast.olga.patch(f"{path}?dry_run=true", {"cordoned": True})
    counts = {"claims": 1, "waiting": 1, "reservations": 0, "last": False}
    assert (answer.status, answer.body) == (200, {"dry_run": True, "uuid": item.gpu.uuid, "cordoned": True, **counts})
    assert cast.anna.patch(f"{path}?dry_run=true", {"cordoned": True}).status == 403
    assert cast.olga.patch(f"{path}?dry_run=true", {"cordoned": "perhaps"}).status == 400
    item.gpu.refresh_from_db()
    assert not item.gpu.cordoned
    assert not AuditEvent.objects.filter(action="gpu.cordon").exists()
