"""Charges: amounts, quotas, and returns."""

import uuid

import pytest

from apps.quotas.models import LedgerEntry, Pool, ResourceQuota, Tenant
from apps.quotas.principals import SYSTEM
from apps.quotas.services import quotas, tenants
from apps.quotas.services.charging import ChargeContext, charge, refund
from apps.quotas.services.refusals import QuotaExceeded
from tests.books import assert_ledger_agrees
from tests.cast import Cast, Machine, give, placed, used


def by(tenant: Tenant, pool: Pool) -> ChargeContext:
    return ChargeContext(principal=SYSTEM, tenant=tenant, pool=pool, claim_uid=uuid.uuid4())


def lower(quota: ResourceQuota, hard: int | None) -> None:
    quotas.change_quota(principal=SYSTEM, quota=quota, hard=hard)


def test_a_charge_is_in_the_quota_and_in_the_ledger(cast: Cast) -> None:
    give(cast.acme, core_percent=100, memory_mib=1000)
    charge(by(cast.acme, cast.pool), amounts={"core_percent": 30, "memory_mib": 400})
    assert used(cast.acme) == {"core_percent": 30, "memory_mib": 400}
    assert_ledger_agrees()


def test_the_ledger_says_what_was_used_after_each_entry(cast: Cast) -> None:
    give(cast.acme, core_percent=100)
    context = by(cast.acme, cast.pool)
    charge(context, amounts={"core_percent": 30})
    charge(context, amounts={"core_percent": 20})
    refund(context, amounts={"core_percent": 50})
    entries = LedgerEntry.objects.values_list("kind", "amount", "used", "hard")
    assert list(entries) == [
        ("set", 0, 0, 100),
        ("charge", 30, 30, 100),
        ("charge", 20, 50, 100),
        ("refund", -50, 0, 100),
    ]


def test_the_last_unit_can_be_taken_and_no_more(cast: Cast) -> None:
    give(cast.acme, core_percent=100)
    charge(by(cast.acme, cast.pool), amounts={"core_percent": 100})
    with pytest.raises(QuotaExceeded):
        charge(by(cast.acme, cast.pool), amounts={"core_percent": 1})


def test_a_refusal_carries_its_numbers(cast: Cast) -> None:
    give(cast.acme, core_percent=100)
    charge(by(cast.acme, cast.pool), amounts={"core_percent": 90})
    with pytest.raises(QuotaExceeded) as refused:
        charge(by(cast.acme, cast.pool), amounts={"core_percent": 30})
    assert len(refused.value.shortages) == 1
    assert {name: value for name, value in refused.value.facts.items() if name != "shortages"} == {
        "resource": "core_percent", "pool": None, "hard": 100, "used": 90, "requested": 30
    }  # fmt: skip
    assert "Core quota exceeded: requested 30 %, 10 % of 100 % available" in refused.value.detail


@pytest.mark.parametrize("resource", ["core_percent", "memory_mib"])
def test_without_a_row_for_core_or_memory_a_tenant_holds_none(cast: Cast, resource: str) -> None:
    with pytest.raises(QuotaExceeded) as refused:
        charge(by(cast.acme, cast.pool), amounts={resource: 1})
    assert refused.value.facts["hard"] == 0


def test_without_a_row_for_vgpus_or_gpus_they_are_not_limited(cast: Cast) -> None:
    charge(by(cast.acme, cast.pool), amounts={"vgpus": 1000, "gpus": 1000})
    assert used(cast.acme) == {}


def test_zero_means_zero(cast: Cast) -> None:
    give(cast.acme, core_percent=0, vgpus=0)
    for resource in ("core_percent", "vgpus"):
        with pytest.raises(QuotaExceeded):
            charge(by(cast.acme, cast.pool), amounts={resource: 1})


def test_null_means_unlimited_and_is_still_counted(cast: Cast) -> None:
    give(cast.acme, core_percent=None)
    charge(by(cast.acme, cast.pool), amounts={"core_percent": 10**9})
    assert used(cast.acme) == {"core_percent": 10**9}


def test_the_pools_row_and_the_overall_row_are_both_charged(cast: Cast) -> None:
    overall = give(cast.acme, core_percent=100)["core_percent"]
    inside = give(cast.acme, pool=cast.pool, core_percent=50)["core_percent"]
    charge(by(cast.acme, cast.pool), amounts={"core_percent": 30})
    for quota in (overall, inside):
        quota.refresh_from_db()
        assert quota.used == 30
    assert_ledger_agrees()


def test_another_pools_row_is_not_charged(cast: Cast) -> None:
    other = tenants.create_pool(principal=SYSTEM, name="shared")
    quota = give(cast.acme, pool=other, core_percent=50)["core_percent"]
    give(cast.acme, core_percent=100)
    charge(by(cast.acme, cast.pool), amounts={"core_percent": 30})
    quota.refresh_from_db()
    assert quota.used == 0


@pytest.mark.parametrize(("overall", "inside"), [(100, 10), (10, 100)])
def test_the_tighter_of_the_two_rows_decides_and_neither_keeps_anything(cast: Cast, overall: int, inside: int) -> None:
    give(cast.acme, core_percent=overall)
    give(cast.acme, pool=cast.pool, core_percent=inside)
    with pytest.raises(QuotaExceeded):
        charge(by(cast.acme, cast.pool), amounts={"core_percent": 30})
    assert set(ResourceQuota.objects.values_list("used", flat=True)) == {0}


def test_a_charge_that_fails_at_its_second_resource_takes_nothing_of_the_first(cast: Cast) -> None:
    give(cast.acme, core_percent=100, memory_mib=10)
    with pytest.raises(QuotaExceeded):
        charge(by(cast.acme, cast.pool), amounts={"core_percent": 30, "memory_mib": 11})
    assert used(cast.acme) == {"core_percent": 0, "memory_mib": 0}
    assert not LedgerEntry.objects.exclude(kind="set").exists()


def test_a_refund_gives_back_no_more_than_the_claim_took(cast: Cast) -> None:
    give(cast.acme, core_percent=100)
    mine, others = by(cast.acme, cast.pool), by(cast.acme, cast.pool)
    charge(mine, amounts={"core_percent": 30})
    charge(others, amounts={"core_percent": 40})
    refund(mine, amounts={"core_percent": 70})
    refund(mine, amounts={"core_percent": 70})
    assert used(cast.acme) == {"core_percent": 40}


def test_a_quota_made_after_a_claim_gets_nothing_back_from_it(cast: Cast) -> None:
    context = by(cast.acme, cast.pool)
    charge(context, amounts={"vgpus": 4})
    give(cast.acme, vgpus=8)
    charge(by(cast.acme, cast.pool), amounts={"vgpus": 2})
    refund(context, amounts={"vgpus": 4})
    assert used(cast.acme) == {"vgpus": 2}


def test_a_quota_lowered_below_its_use_takes_nothing_and_admits_nothing(cast: Cast) -> None:
    quota = give(cast.acme, core_percent=100)["core_percent"]
    context = by(cast.acme, cast.pool)
    charge(context, amounts={"core_percent": 80})
    lower(quota, 50)
    assert used(cast.acme) == {"core_percent": 80}
    with pytest.raises(QuotaExceeded):
        charge(by(cast.acme, cast.pool), amounts={"core_percent": 1})


def test_what_was_held_above_a_lowered_quota_cannot_be_taken_again(cast: Cast) -> None:
    quota = give(cast.acme, core_percent=100)["core_percent"]
    context = by(cast.acme, cast.pool)
    charge(context, amounts={"core_percent": 80})
    lower(quota, 50)
    refund(context, amounts={"core_percent": 20})
    with pytest.raises(QuotaExceeded):
        charge(by(cast.acme, cast.pool), amounts={"core_percent": 1})
    refund(context, amounts={"core_percent": 20})
    charge(by(cast.acme, cast.pool), amounts={"core_percent": 10})
    quota.refresh_from_db()
    assert (quota.used, quota.excess) == (50, 0)


def test_a_quota_can_be_raised_and_lifted_again(cast: Cast) -> None:
    quota = give(cast.acme, core_percent=100)["core_percent"]
    charge(by(cast.acme, cast.pool), amounts={"core_percent": 80})
    for hard in (10, None, 20, 200):
        lower(quota, hard)
    charge(by(cast.acme, cast.pool), amounts={"core_percent": 120})
    assert used(cast.acme) == {"core_percent": 200}


def test_one_tenants_charge_is_not_anothers(cast: Cast) -> None:
    give(cast.acme, core_percent=100)
    give(cast.globex, core_percent=100)
    charge(by(cast.acme, cast.pool), amounts={"core_percent": 100})
    charge(by(cast.globex, cast.pool), amounts={"core_percent": 100})
    assert used(cast.globex) == {"core_percent": 100}


def test_a_quota_made_later_counts_what_is_held_already_and_gets_it_back(cast: Cast) -> None:
    give(cast.acme, core_percent=None, memory_mib=None)
    machine = Machine("gpu1", cast.pool)
    first, _ = placed(cast, machine, core_request=40)
    second, _ = placed(cast, machine, core_request=40)
    quota = give(cast.acme, pool=cast.pool, vgpus=1)["vgpus"]
    assert (quota.used, quota.excess) == (2, 1)
    assert cast.max.post("claims/", {"tenant": "acme", "core_request": 1, "memory_mib": 1}).code == "quota-exceeded"
    for claim in (first, second):
        cast.max.delete(f"claims/{claim.uid}/")
    machine.obey()
    quota.refresh_from_db()
    assert (quota.used, quota.excess) == (0, 0)
    assert_ledger_agrees()
