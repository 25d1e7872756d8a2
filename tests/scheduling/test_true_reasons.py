"""Why a claim waits is true after each change of a quota or of the fleet."""

from typing import Any
from uuid import UUID

import pytest
from django.test import Client
from django.urls import reverse

from apps.nodes.models import Gpu, Node
from apps.nodes.services import nodes
from apps.nodes.services.gpus import cordon_gpu
from apps.quotas.models import User
from apps.quotas.principals import SYSTEM
from apps.quotas.services import quotas
from apps.scheduling.models import Claim
from apps.scheduling.services.cycles import queue
from apps.scheduling.services.cycles.pool_cache import PoolCache
from apps.scheduling.services.cycles.rounds import BATCH, rounds, run_round
from tests.cast import GIB, Cast, Machine, ask, give, give_plenty, lose, placed


def details(claim: Claim) -> list[str]:
    claim.refresh_from_db()
    return [reason["detail"] for reason in claim.reasons]


def go_on(cache: PoolCache) -> None:
    """Run rounds, without the pause after the last rewriting of reasons."""
    cache.rewriting._not_before = 0.0
    for _ in rounds(cache, fence=lambda: None):
        pass


def waiting_for_quota(cast: Cast, **asked: Any) -> Claim:
    claim = ask(cast, when_over_quota="wait", **asked)
    run_round(cast.pool)
    return claim


def test_a_quota_reason_has_the_present_numbers(cast: Cast) -> None:
    rows = give(cast.acme, core_percent=50, memory_mib=24 * GIB)
    Machine("gpu1", cast.pool)
    claim = waiting_for_quota(cast, gpu_count=2, core_request=60, memory_mib=GIB)
    quotas.change_quota(principal=SYSTEM, quota=rows["core_percent"], hard=100)
    expected = ["Core quota exceeded: requested 120 %, 100 % of 100 % available"]
    document = cast.max.get(f"claims/{claim.uid}/").body
    assert [reason["detail"] for reason in document["reasons"]] == expected
    assert document["reasons_at"] is not None
    (listed,) = cast.max.get("claims/").body["results"]
    assert [reason["detail"] for reason in listed["reasons"]] == expected
    (queued,) = cast.max.get("pools/default/queue/").body["results"]
    assert [reason["detail"] for reason in queued["reasons"]] == expected
    assert document["estimate"]["detail"] == "Waiting for tenant quota; no estimate"


def test_all_short_resources_are_named_at_once(cast: Cast) -> None:
    give(cast.acme, core_percent=50, memory_mib=2 * GIB)
    Machine("gpu1", cast.pool)
    refused = cast.max.post("claims/", {"tenant": "acme", "core_request": 60, "memory_mib": 4 * GIB})
    assert refused.body["detail"] == (
        "Core quota exceeded: requested 60 %, 50 % of 50 % available; "
        "Memory quota exceeded: requested 4 GiB, 2 GiB of 2 GiB available"
    )
    assert [item["resource"] for item in refused.body["shortages"]] == ["core_percent", "memory_mib"]
    claim = waiting_for_quota(cast, core_request=60, memory_mib=4 * GIB)
    assert len(details(claim)) == 2


def test_quota_that_is_there_again_is_not_called_exceeded(cast: Cast) -> None:
    rows = give(cast.acme, core_percent=50, memory_mib=24 * GIB)
    Machine("gpu1", cast.pool)
    claim = waiting_for_quota(cast, core_request=60, memory_mib=GIB)
    quotas.change_quota(principal=SYSTEM, quota=rows["core_percent"], hard=100)
    (reason,) = cast.max.get(f"claims/{claim.uid}/").body["reasons"]
    assert reason["code"] == "quota-available"


def cordon(machine: Machine) -> None:
    nodes.change_node(principal=SYSTEM, node=machine.node, cordoned=True)


def exclude_gpu(machine: Machine) -> None:
    Gpu.objects.filter(node=machine.node, index=0).update(unhealthy="XID 79")


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (cordon, "node"),
        (lose, ""),
        (exclude_gpu, "gpu"),
    ],
)
def test_a_placement_reason_is_written_anew_within_a_cycle(cast: Cast, change: Any, kind: str) -> None:
    give_plenty(cast.acme)
    machine = Machine("gpu1", cast.pool, gpus=2)
    Machine("gpu2", cast.pool, gpus=4)
    Node.objects.filter(name="gpu2").update(cordoned=True)
    claim = ask(cast, gpu_count=3, core_request=50, memory_mib=GIB)
    cache = PoolCache(cast.pool)
    go_on(cache)
    assert details(claim)[-1] == "3 GPUs of one node are requested; the most that fit on one node are 2"
    change(machine)
    if kind:
        rows = {"node": [machine.node.pk], "gpu": list(machine.node.gpus.values_list("pk", flat=True))}[kind]
        cache.apply({kind: {str(key) for key in rows}})
    else:
        cache.refresh_silent_nodes()
    go_on(cache)
    assert not any("the most that fit on one node are 2" in line for line in details(claim))


def test_a_claims_page_is_true_before_the_next_cycle(cast: Cast) -> None:
    give_plenty(cast.acme)
    machine = Machine("gpu1", cast.pool, gpus=2)
    placed(cast, machine, core_request=60, memory_mib=GIB)
    claim = ask(cast, gpu_count=2, core_request=60, memory_mib=GIB)
    run_round(cast.pool)
    cordon(machine)
    (reason,) = cast.max.get(f"claims/{claim.uid}/").body["reasons"]
    assert reason["detail"] == "2 GPUs unavailable (node cordoned or NotReady)"


def test_a_large_pools_snapshot_is_not_used_after_a_cordon(cast: Cast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue, "LARGE", 0)
    monkeypatch.setattr(queue, "_snapshots", {})
    machine = Machine("gpu1", cast.pool, gpus=2)
    before = queue.get_snapshot(cast.pool)
    assert queue.get_snapshot(cast.pool) is before
    cordon(machine)
    assert queue.get_snapshot(cast.pool) is not before


def test_a_cordoned_gpu_is_named_in_a_cached_queue_and_in_reasons_written_before(
    cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    give_plenty(cast.acme)
    machine = Machine("gpu1", cast.pool, gpus=2)
    placed(cast, machine, core_request=90, memory_mib=GIB)
    claim = ask(cast, gpu_count=2, core_request=20, memory_mib=GIB)
    cache = PoolCache(cast.pool)
    go_on(cache)
    assert "1 GPU is cordoned" not in details(claim)
    monkeypatch.setattr(queue, "LARGE", 0)
    monkeypatch.setattr(queue, "_snapshots", {})
    before = queue.get_snapshot(cast.pool)
    cordon_gpu(principal=SYSTEM, gpu=machine.gpu(1), cordoned=True)
    assert queue.get_snapshot(cast.pool) is not before
    cache.apply({"gpu": {str(machine.gpu(1).pk)}})
    go_on(cache)
    assert "1 GPU is cordoned" in details(claim)


def test_more_claims_than_a_round_answers_are_rewritten(cast: Cast) -> None:
    give_plenty(cast.acme)
    machine = Machine("gpu1", cast.pool, gpus=1)
    placed(cast, machine, core_request=90, memory_mib=GIB)
    first = ask(cast, core_request=20, memory_mib=GIB)
    many = [Claim.objects.get(pk=first.pk) for _ in range(BATCH + 50)]
    for number, claim in enumerate(many):
        claim.pk, claim.uid = None, UUID(int=number + 1)
    Claim.objects.bulk_create(many)
    cache = PoolCache(cast.pool)
    go_on(cache)
    versions = dict(Claim.objects.filter(state="queued").values_list("pk", "version"))
    go_on(cache)
    assert dict(Claim.objects.filter(state="queued").values_list("pk", "version")) == versions
    cordon(machine)
    cache.apply({"node": {str(machine.node.pk)}})
    go_on(cache)
    shown = {tuple(reason["detail"] for reason in row.reasons) for row in Claim.objects.filter(state="queued")}
    assert shown == {("1 GPU unavailable (node cordoned or NotReady)",)}


def test_a_suggestion_keeps_to_the_quota_and_is_applied_by_a_button(cast: Cast) -> None:
    give(cast.acme, core_percent=32, memory_mib=24 * GIB)
    Machine("gpu1", cast.pool)
    claim = waiting_for_quota(cast, core_request=60, memory_mib=GIB)
    (suggestion,) = cast.max.get(f"claims/{claim.uid}/").body["suggestions"]
    assert suggestion == {"name": "core_request", "value": 32, "detail": "Reduce core request to 32 % to start now"}
    browser = Client()
    browser.force_login(User.objects.get(username="max"))
    page = browser.get(reverse("claim", args=[claim.uid])).content.decode()
    assert "Reduce core request to 32 % to start now" in page
    assert reverse("apply-suggestion", args=[claim.uid]) in page
    browser.post(reverse("apply-suggestion", args=[claim.uid]), {"core_request": 32})
    run_round(cast.pool)
    claim.refresh_from_db()
    assert (claim.core_request, claim.state) == (32, "assigned")
