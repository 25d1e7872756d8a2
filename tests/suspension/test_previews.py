"""Previews of quotas and cordons count claims that wait to resume."""

import pytest

from apps.accounting.services.sums import Sums
from apps.quotas.models import ResourceQuota
from apps.quotas.services.refusals import QuotaExceeded
from apps.scheduling.models import Claim
from apps.scheduling.services.previews.gpu_cordons import effects_of_cordon
from tests.cast import GIB, Cast, Machine, ask, give
from tests.suspension.test_suspending import resume, suspended


def waiting(cast: Cast) -> tuple[Claim, ResourceQuota]:
    """Create a claim of 60 % that waits to resume, and its tenant's quota of 100 %."""
    quotas = give(cast.acme, core_percent=100, memory_mib=None, host_memory_mib=20 * GIB)
    machine = Machine("gpu1", cast.pool, host_memory_mib=20 * GIB)
    claim = suspended(cast, machine, core_request=60)
    resume(cast, claim)
    return claim, quotas["core_percent"]


def test_a_lower_quota_says_that_a_claim_could_no_longer_resume(cast: Cast) -> None:
    claim, quota = waiting(cast)
    shown = cast.olga.patch(f"quotas/{quota.pk}/?dry_run=true", {"hard": 50}, If_Match="*").body
    assert [(row["claim"], row["changed"]) for row in shown["pending"]] == [(str(claim.uid), True)]
    assert shown["pending"][0]["reasons"][0]["detail"].startswith("Core quota exceeded: requested 60 %")
    shown = cast.olga.patch(f"quotas/{quota.pk}/?dry_run=true", {"hard": 60}, If_Match="*").body
    assert [(row["claim"], row["changed"]) for row in shown["runnable"]] == [(str(claim.uid), False)]


def test_its_host_memory_is_charged_already(cast: Cast) -> None:
    claim, _ = waiting(cast)
    quota = ResourceQuota.objects.get(tenant=cast.acme, resource="host_memory_mib")
    shown = cast.olga.patch(f"quotas/{quota.pk}/?dry_run=true", {"hard": 2 * GIB}, If_Match="*").body
    assert [row["claim"] for row in shown["runnable"]] == [str(claim.uid)]


def test_a_cordon_keeps_a_claim_that_waits_for_this_gpu_and_none_that_waits_for_another(cast: Cast) -> None:
    claim, _ = waiting(cast)
    own = claim.assignments.select_related("gpu__node__pool").get().gpu
    assert effects_of_cordon(own).waiting == 1
    other = own.node.gpus.exclude(pk=own.pk).select_related("node__pool").first()
    assert other is not None
    assert effects_of_cordon(other).waiting == 0
    ask(cast, core_request=10)
    assert (effects_of_cordon(own).waiting, effects_of_cordon(other).waiting) == (2, 1)


def test_a_claim_that_resumes_is_charged_its_host_memory_once(cast: Cast) -> None:
    """Its tenant's quota of host memory is full of it already, and is not charged again."""
    claim, _ = waiting(cast)
    claim = Claim.objects.select_related("tenant", "pool").get(pk=claim.pk)
    held = claim.charged["host_memory_mib"]
    assert claim.waits_to_resume
    assert held > 0
    ResourceQuota.objects.filter(tenant=cast.acme, resource="host_memory_mib").update(hard=held)
    sums = Sums(ResourceQuota.objects.filter(tenant=cast.acme).select_related("tenant", "pool", "share").order_by("pk"))
    sums.charge(claim)
    used = {quota.resource: quota.used for quota in sums.quotas}
    assert (used["core_percent"], used["host_memory_mib"]) == (60, held)
    # Charged twice, it exceeds its core, and nothing changes.
    with pytest.raises(QuotaExceeded):
        sums.charge(claim)
    assert {quota.resource: quota.used for quota in sums.quotas} == used
