"""Borrowing below an organisation: tenants of a cohort lend one another, and no level is exceeded by it.

Three levels: a company, its departments physics and chemistry, and the tenants acme and globex with a guarantee of 200
percent each.
"""

import time
from collections.abc import Mapping
from functools import partial
from typing import Any

import pytest
from django.utils import timezone

from apps.accounting.services.ledger_check import differences
from apps.quotas.models import CohortShare, Organisation, OrganisationQuota, ResourceQuota, Tenant
from apps.quotas.principals import SYSTEM
from apps.quotas.services import cohorts, organisation_quotas, organisations, tenants
from apps.quotas.services.refusals import QuotaExceeded
from apps.scheduling.models import Claim
from apps.scheduling.services.cycles.rounds import run_round
from apps.scheduling.services.reclaiming import preemption
from apps.scheduling.services.reclaiming.reclaim import would_reclaim
from tests.cast import Cast, Machine, ask, assert_books_agree, give, placed, used
from tests.racing import outcomes, race
from tests.scheduling.test_organisation_races import naive_take, unlocked

RACERS, OWN, PLENTY = 64, 200, 900
A_MOMENT_SECONDS = 0.05


def company(cast: Cast, places: Mapping[str, str], hards: Mapping[str, int]) -> None:
    """Place the tenants, by slug, in departments of a company; all of them lend to each other."""
    top = organisations.create_organisation(principal=SYSTEM, slug="company", name="Company")
    rows = {"company": top}
    for slug in ("physics", "chemistry"):
        rows[slug] = organisations.create_organisation(principal=SYSTEM, slug=slug, name=slug, parent=top)
    for slug, row in rows.items():
        limit(row, hards.get(slug, PLENTY))
    for tenant in (cast.acme, cast.globex):
        values: dict[str, Any] = {"organisation": rows[places[tenant.slug]], "cohort": "science"}
        tenants.change_tenant(principal=SYSTEM, tenant=tenant, **values)
        tenant.refresh_from_db()
        give(tenant, core_percent=OWN, memory_mib=None)


def limit(row: Organisation, hard: int) -> OrganisationQuota:
    return organisations.create_quota(principal=SYSTEM, organisation=row, pool=None, resource="core_percent", hard=hard)


def in_physics(cast: Cast, **hards: int) -> None:
    company(cast, {"acme": "physics", "globex": "physics"}, hards)


def used_of(slug: str) -> int:
    return OrganisationQuota.objects.get(organisation__slug=slug).used


def small(cast: Cast, tenant: Tenant) -> Claim:
    return ask(cast, tenant=tenant, core_request=10, memory_mib=1)


# Bounds


@pytest.mark.django_db
def test_a_department_bounds_what_its_tenants_borrow(cast: Cast) -> None:
    in_physics(cast, physics=300)
    for _ in range(30):
        small(cast, cast.acme)
    quota = ResourceQuota.objects.get(tenant=cast.acme, resource="core_percent")
    assert (quota.used, quota.borrowed, used_of("physics")) == (300, 100, 300)
    with pytest.raises(QuotaExceeded, match="Core quota of organisation physics exceeded"):
        small(cast, cast.acme)
    assert_books_agree()


@pytest.mark.django_db
def test_what_is_borrowed_from_another_department_counts_where_it_is_used(cast: Cast) -> None:
    """A cohort may span departments: the borrower's levels bound it, and the lender's have that room back."""
    company(cast, {"acme": "physics", "globex": "chemistry"}, {"physics": 250})
    for _ in range(25):
        small(cast, cast.acme)
    assert (used_of("physics"), used_of("chemistry"), used_of("company")) == (250, 0, 250)
    with pytest.raises(QuotaExceeded) as refused:
        small(cast, cast.acme)
    assert [item["organisation"] for item in refused.value.shortages] == ["physics"]
    # The cohort has lent 50 of chemistry's 200.
    for _ in range(15):
        small(cast, cast.globex)
    with pytest.raises(QuotaExceeded) as refused:
        small(cast, cast.globex)
    assert [item["organisation"] for item in refused.value.shortages] == [None]
    assert_books_agree()


BOUNDS = {"company": {"company": 330}, "physics": {"physics": 330}, "cohort": {}}


def borrow_at_once(cast: Cast, tightest: str) -> list[Any]:
    """Let acme ask for 480 and globex for 160 percent at once, by tens; they have 400 together."""
    in_physics(cast, **BOUNDS[tightest])
    turns = [cast.acme, cast.acme, cast.acme, cast.globex] * (RACERS // 4)
    return race([partial(small, cast, tenant) for tenant in turns], at_once=32)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("tightest", BOUNDS)
def test_tenants_that_borrow_at_once_get_exactly_the_tightest_bound(real_cast: Cast, tightest: str) -> None:
    granted = 40 if tightest == "cohort" else 33
    results = borrow_at_once(real_cast, tightest)
    assert outcomes(results) == {"Claim": granted, "QuotaExceeded": RACERS - granted}
    assert used_of("physics") == used_of("company") == 10 * granted
    held = [used(tenant)["core_percent"] for tenant in (real_cast.acme, real_cast.globex)]
    assert sum(held) == 10 * granted
    assert held[0] > OWN
    assert CohortShare.objects.get(resource="core_percent").taken == 10 * granted
    assert_books_agree()
    assert not differences()


def naive_share(quota: ResourceQuota, amount: int) -> bool:
    """Read, check, write: unlike `cohorts`."""
    if quota.share_id is None or quota.hard is None:
        return True
    share = CohortShare.objects.get(pk=quota.share_id)
    time.sleep(A_MOMENT_SECONDS)
    if share.taken + amount > share.lendable:
        return False
    CohortShare.objects.filter(pk=share.pk).update(taken=share.taken + amount)
    return True


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("tightest", BOUNDS)
def test_control_without_the_guards_more_is_borrowed_than_there_is(
    real_cast: Cast, monkeypatch: pytest.MonkeyPatch, tightest: str
) -> None:
    monkeypatch.setattr(cohorts, "lock", lambda _: None)
    if tightest == "cohort":
        monkeypatch.setattr(cohorts, "take", naive_share)
        monkeypatch.setattr(organisation_quotas, "lock", lambda *_, **__: [])
    else:
        monkeypatch.setattr(cohorts, "take", lambda *_: True)
        monkeypatch.setattr(organisation_quotas, "take", naive_take)
        monkeypatch.setattr(organisation_quotas, "lock", unlocked)
    assert outcomes(borrow_at_once(real_cast, tightest))["Claim"] > (40 if tightest == "cohort" else 33)
    assert differences()


# What is lent comes back


def full_department(cast: Cast, *, acme: int, globex: int) -> Machine:
    """Fill physics, which has 300 percent, by claims of 50 percent."""
    in_physics(cast, physics=300)
    machine = Machine("gpu1", cast.pool).stay_online()
    for tenant, amount in ((cast.acme, acme), (cast.globex, globex)):
        for _ in range(amount // 50):
            placed(cast, machine, tenant=tenant, core_request=50, memory_mib=1)
    assert used_of("physics") == 300
    return machine


def drive(cast: Cast, machine: Machine) -> None:
    """Give notice, end the grace, and let the agent confirm."""
    run_round(cast.pool)
    preemption.drive()
    Claim.objects.filter(preempt_at__isnull=False).update(preempt_at=timezone.now())
    preemption.drive()
    machine.obey()
    run_round(cast.pool)
    machine.obey()


@pytest.mark.django_db
def test_a_full_department_gives_a_lender_its_guarantee_back(cast: Cast) -> None:
    """The cohort has room for the claim, and the department has none: borrowers below it make room."""
    machine = full_department(cast, acme=250, globex=50)
    claim = ask(cast, tenant=cast.globex, core_request=50, memory_mib=1, when_over_quota="wait")
    assert "organisation physics" in claim.reasons[0]["detail"]
    drive(cast, machine)
    claim.refresh_from_db()
    assert claim.state == "active"
    assert [used(tenant)["core_percent"] for tenant in (cast.acme, cast.globex)] == [200, 100]
    assert used_of("physics") == 300
    # Acme is within its guarantee now, so globex gets no more, although it has 100 of its own left.
    more = ask(cast, tenant=cast.globex, core_request=50, memory_mib=1, when_over_quota="wait")
    drive(cast, machine)
    more.refresh_from_db()
    assert more.state == "queued"
    assert used(cast.acme)["core_percent"] == 200
    assert_books_agree()


@pytest.mark.django_db
def test_a_dry_run_says_who_would_go_for_a_lender_in_a_full_department(cast: Cast) -> None:
    full_department(cast, acme=250, globex=50)
    body = {"tenant": "globex", "core_request": 50, "memory_mib": 1, "when_over_quota": "wait"}
    shown = cast.gus.post("claims/?dry_run=true", body).body["reclaims"]
    assert (shown["claims"], shown["core_percent"]) == (1, 50)
    assert "core_percent of organisation physics over all pools" in shown["explanation"]


@pytest.mark.django_db
def test_nobody_goes_where_other_tenants_fill_the_level_above(cast: Cast) -> None:
    """A tenant outside of the cohort lends nothing, so nobody in physics goes for what it holds at the company."""
    full_department(cast, acme=250, globex=50)
    OrganisationQuota.objects.filter(organisation__slug="physics").update(hard=PLENTY)
    quota = OrganisationQuota.objects.get(organisation__slug="company")
    organisations.change_quota(principal=SYSTEM, quota=quota, hard=200)
    claim = ask(cast, tenant=cast.globex, core_request=100, memory_mib=1, when_over_quota="wait")
    assert would_reclaim(claim, principal=SYSTEM) is None
