"""Previews by the services themselves, in a transaction that is rolled back."""

import pytest

from apps.quotas.models import AuditEvent, LedgerEntry
from apps.scheduling.models import Claim
from apps.scheduling.services.claims import lifecycle
from tests.cast import GIB, Cast, Machine, assert_books_agree, give, give_plenty, placed, used

ASKED = {"tenant": "acme", "core_request": 30, "memory_mib": 8 * GIB}


def test_a_previewed_claim_says_where_it_would_go_and_leaves_nothing(cast: Cast) -> None:
    give(cast.acme, core_percent=100, memory_mib=16 * GIB)
    machine = Machine("gpu1", cast.pool)
    rows = LedgerEntry.objects.count(), AuditEvent.objects.count()
    answer = cast.max.post("claims/?dry_run=true", ASKED)
    assert (answer.status, answer.body["dry_run"], answer.body["state"]) == (200, True, "assigned")
    assert answer.body["gpus"] == [machine.gpu(0).uuid]
    assert not Claim.objects.exists()
    assert (LedgerEntry.objects.count(), AuditEvent.objects.count()) == rows
    assert used(cast.acme) == {"core_percent": 0, "memory_mib": 0}


def test_a_previewed_claim_that_would_wait_says_why(cast: Cast) -> None:
    give_plenty(cast.acme)
    machine = Machine("gpu1", cast.pool, gpus=1)
    placed(cast, machine, core_request=80)
    body = cast.max.post("claims/?dry_run=true", ASKED).body
    assert body["state"] == "queued"
    assert [reason["code"] for reason in body["reasons"]] == ["gpu-core"]


def test_a_preview_is_refused_as_the_act_would_be(cast: Cast) -> None:
    give(cast.acme, core_percent=20, memory_mib=16 * GIB)
    Machine("gpu1", cast.pool)
    assert cast.max.post("claims/?dry_run=true", ASKED).code == "quota-exceeded"
    assert cast.vera.post("claims/?dry_run=true", ASKED).code == "role-missing"
    assert cast.max.post("claims/?dry_run=perhaps", ASKED).code == "invalid-fields"


def test_a_previewed_resize_changes_nothing(cast: Cast) -> None:
    give(cast.acme, core_percent=100, memory_mib=16 * GIB)
    machine = Machine("gpu1", cast.pool)
    claim, _ = placed(cast, machine)
    frame = type(machine.node).objects.get(pk=machine.node.pk).frame
    answer = cast.max.patch(f"claims/{claim.uid}/?dry_run=true", {"core_request": 60})
    assert (answer.status, answer.body["core_request"], answer.body["generation"]) == (200, 60, 2)
    assert (
        cast.max.patch(f"claims/{claim.uid}/?dry_run=true", {"core_request": 100, "memory_mib": 25 * GIB}).status == 422
    )
    assert cast.max.get(f"claims/{claim.uid}/").body["core_request"] == 30
    assert type(machine.node).objects.get(pk=machine.node.pk).frame == frame
    assert_books_agree()


def test_what_waits_for_quota_uncharged_is_bounded(cast: Cast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifecycle, "MOST_UNCHARGED", 3)
    give(cast.acme, core_percent=10, memory_mib=GIB)
    for _ in range(3):
        assert cast.max.post("claims/", {**ASKED, "when_over_quota": "wait"}).status == 201
    assert cast.max.post("claims/", {**ASKED, "when_over_quota": "wait"}).code == "too-many-waiting"
