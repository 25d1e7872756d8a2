"""Races for the quotas of organisations, each beside a control: the same race without the guard goes wrong.

Three levels: a company, its department, and the department's tenants (acme, globex) with quotas of their own.
"""

import itertools
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Any

import pytest

from apps.accounting.services.ledger_check import differences
from apps.quotas.models import LedgerEntry, Organisation, OrganisationQuota, Tenant
from apps.quotas.principals import SYSTEM
from apps.quotas.services import organisation_quotas, organisations, tenants
from apps.quotas.services.refusals import QuotaExceeded
from apps.scheduling.models import Claim
from apps.scheduling.services.claims.lifecycle import release_claim
from gpucloud.errors import Conflict
from tests.cast import Cast, ask, assert_books_agree, give, used
from tests.matrix import scales
from tests.racing import outcomes, race, without_constraint

pytestmark = pytest.mark.django_db(transaction=True)

RACERS = pytest.mark.parametrize("racers", scales(24, 64))
# Long enough for every racer to read the same value, short enough to wait for.
A_MOMENT_SECONDS = 0.05
LEVELS = ("company", "department", "tenant")


def assert_all_agrees() -> None:
    assert_books_agree()
    assert not differences()


def company(cast: Cast, hards: Mapping[str, int | None]) -> dict[str, Organisation]:
    """Make a company with two departments; acme and globex belong to the first."""
    top = organisations.create_organisation(principal=SYSTEM, slug="company", name="Company")
    rows = {"company": top}
    for slug in ("department", "other"):
        rows[slug] = organisations.create_organisation(principal=SYSTEM, slug=slug, name=slug, parent=top)
    for slug, row in rows.items():
        limit(row, hards.get(slug))
    for tenant in (cast.acme, cast.globex):
        tenants.change_tenant(principal=SYSTEM, tenant=tenant, organisation=rows["department"])
        give(tenant, core_percent=hards.get("tenant"), memory_mib=None)
    return rows


def limit(row: Organisation, hard: int | None) -> OrganisationQuota:
    return organisations.create_quota(principal=SYSTEM, organisation=row, pool=None, resource="core_percent", hard=hard)


def used_of(slug: str) -> int:
    return OrganisationQuota.objects.get(organisation__slug=slug, resource="core_percent").used


def asks(cast: Cast, count: int, *tenants_: Tenant) -> list[Callable[[], Claim]]:
    return [
        partial(ask, cast, tenant=tenant, core_request=10, memory_mib=1)
        for tenant in itertools.islice(itertools.cycle(tenants_), count)
    ]


def charge_at_once(cast: Cast, tightest: str, racers: int) -> list[Any]:
    """Let acme and globex charge ten percent each, where one level has room for seven charges (of each tenant's)."""
    company(cast, {level: 75 if level == tightest else 10 * racers for level in LEVELS})
    return race(asks(cast, racers, cast.acme, cast.globex), at_once=racers)


@RACERS
@pytest.mark.parametrize("tightest", LEVELS)
def test_charges_at_once_get_exactly_the_tightest_quota(real_cast: Cast, tightest: str, racers: int) -> None:
    results = charge_at_once(real_cast, tightest, racers)
    granted = 14 if tightest == "tenant" else 7
    assert outcomes(results) == {"Claim": granted, "QuotaExceeded": racers - granted}
    assert used_of("company") == used_of("department") == 10 * granted
    assert sum(used(tenant)["core_percent"] for tenant in (real_cast.acme, real_cast.globex)) == 10 * granted
    short = {item["organisation"] for error in results if isinstance(error, QuotaExceeded) for item in error.shortages}
    assert short == {None if tightest == "tenant" else tightest}
    assert_all_agrees()


def naive_take(levels: Iterable[OrganisationQuota], wanted: Mapping[str, int]) -> list[QuotaExceeded]:
    """Read, check, write: unlike `organisation_quotas`."""
    rows = [OrganisationQuota.objects.get(pk=level.pk) for level in levels]
    time.sleep(A_MOMENT_SECONDS)
    short = organisation_quotas.shortages(rows, wanted)
    for row in rows if not short else ():
        OrganisationQuota.objects.filter(pk=row.pk).update(used=row.used + wanted.get(row.resource, 0))
    return short


def unlocked(organisation_ids: Iterable[int], **_: Any) -> list[OrganisationQuota]:
    return list(OrganisationQuota.objects.select_related("organisation", "pool").order_by("pk"))


@pytest.mark.parametrize("tightest", ["company", "department"])
def test_control_without_the_guard_more_than_the_tightest_quota_is_granted(
    real_cast: Cast, monkeypatch: pytest.MonkeyPatch, tightest: str
) -> None:
    monkeypatch.setattr(organisation_quotas, "take", naive_take)
    monkeypatch.setattr(organisation_quotas, "lock", unlocked)
    assert outcomes(charge_at_once(real_cast, tightest, racers=24))["Claim"] > 7
    assert differences()


def test_the_statement_alone_grants_exactly_the_quota(real_cast: Cast, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the locks, the UPDATE's own condition still decides."""
    monkeypatch.setattr(organisation_quotas, "lock", unlocked)
    results = outcomes(charge_at_once(real_cast, "company", racers=24))
    assert used_of("company") == 10 * results["Claim"] <= 75


# A tenant, and a whole department, move while claims come and go


def churn(cast: Cast, tenant: Tenant) -> None:
    """Create a claim and release it; a claim may be refused."""
    try:
        claim = ask(cast, tenant=tenant, core_request=10, memory_mib=1)
    except QuotaExceeded:
        return
    time.sleep(A_MOMENT_SECONDS / 5)
    if claim.pk % 3:
        release_claim(principal=SYSTEM, claim=claim)


def move_to_and_fro(cast: Cast, rows: Mapping[str, Organisation]) -> None:
    for slug in ("other", "company", None, "department", "other"):
        row = rows[slug] if slug else None
        tenants.change_tenant(principal=SYSTEM, tenant=cast.acme, organisation=row)


def move_department(rows: Mapping[str, Organisation]) -> None:
    for parent in (rows["other"], None, rows["company"]):
        organisations.change_organisation(principal=SYSTEM, organisation=rows["department"], parent=parent)


def count_anew(rows: Mapping[str, Organisation]) -> None:
    """Replace the quotas of the company and the department: what is held counts again from the claims."""
    for quota in OrganisationQuota.objects.exclude(organisation=rows["other"]).select_related("organisation"):
        organisations.delete_quota(principal=SYSTEM, quota=quota)
        limit(quota.organisation, 900)


def changed_under_load(cast: Cast) -> list[Any]:
    rows = company(cast, dict.fromkeys((*LEVELS, "other"), 900))
    charges = [partial(churn, cast, tenant) for tenant in [cast.acme, cast.globex] * 30]
    movers = [partial(move_to_and_fro, cast, rows), partial(move_department, rows), partial(count_anew, rows)]
    return race([*charges[:20], *movers, *charges[20:]], at_once=16)


def test_moves_under_load_keep_every_level_equal_to_its_claims(real_cast: Cast) -> None:
    results = outcomes(changed_under_load(real_cast))
    assert set(results) <= {"NoneType", "OrganisationFull"}
    # Moves may be refused where the others hold the room; none of the charges fails.
    assert results["NoneType"] >= 60
    assert used_of("company") > 0
    assert_all_agrees()
    entries = LedgerEntry.objects.filter(resource="core_percent").values_list("amount", flat=True)
    outside = Tenant.objects.filter(organisation=None).values("pk")
    assert sum(entries.exclude(tenant__in=outside)) == used_of("company")


def test_control_moves_that_do_not_wait_for_charges_lose_count(
    real_cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = organisation_quotas.amount_held

    def slowly(quota: OrganisationQuota, tenants_: Iterable[Tenant]) -> int:
        amount = held(quota, tenants_)
        time.sleep(A_MOMENT_SECONDS)
        return amount

    def list_only(rows: Any) -> Collection[Tenant]:
        return list(rows)

    rows = company(real_cast, dict.fromkeys(LEVELS))
    OrganisationQuota.objects.filter(organisation=rows["other"]).delete()
    monkeypatch.setattr(organisation_quotas, "amount_held", slowly)
    monkeypatch.setattr(organisations, "_lock_tenants", list_only)
    race([partial(limit, rows["other"], None), *asks(real_cast, 15, real_cast.acme)], at_once=16)
    OrganisationQuota.objects.filter(organisation=rows["company"]).delete()
    race([partial(limit, rows["company"], None), *asks(real_cast, 15, real_cast.acme)], at_once=16)
    assert differences()


def test_a_lowered_quota_grants_nothing_above_it_from_then_on(real_cast: Cast) -> None:
    rows = company(real_cast, dict.fromkeys(LEVELS, 640))
    quota = OrganisationQuota.objects.get(organisation=rows["company"])
    lower = partial(organisations.change_quota, principal=SYSTEM, quota=quota, hard=40)
    results = race([*asks(real_cast, 8, real_cast.acme), lower, *asks(real_cast, 23, real_cast.globex)], at_once=32)
    assert set(outcomes(results)) <= {"Claim", "QuotaExceeded", "OrganisationQuota"}
    quota.refresh_from_db()
    assert quota.used <= 40 + quota.excess
    assert_all_agrees()


def test_organisations_that_are_put_below_each_other_at_once_make_no_circle(real_cast: Cast) -> None:
    rows = company(real_cast, {})
    pairs = (("department", "other"), ("other", "department"))
    moves: list[Callable[[], Any]] = [
        partial(organisations.change_organisation, principal=SYSTEM, organisation=rows[one], parent=rows[two])
        for one, two in pairs
    ]
    assert outcomes(race(moves, at_once=2)) == {"Organisation": 1, "WrongParent": 1}
    assert Organisation.objects.filter(parent=rows["company"]).count() == 1


def test_control_without_the_trees_lock_they_hold_each_other(real_cast: Cast, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse = organisations._refuse_cycle

    def slowly(organisation: Organisation, parent: Organisation | None) -> None:
        refuse(organisation, parent)
        time.sleep(A_MOMENT_SECONDS * 4)

    rows = company(real_cast, {})
    monkeypatch.setattr(organisations, "serialize_tree", lambda: None)
    monkeypatch.setattr(organisations, "_refuse_cycle", slowly)
    moves: list[Callable[[], Any]] = [
        partial(organisations.change_organisation, principal=SYSTEM, organisation=rows[one], parent=rows[two])
        for one, two in (("department", "other"), ("other", "department"))
    ]
    # Both pass the check; PostgreSQL ends the deadlock of the second's foreign key.
    assert outcomes(race(moves, at_once=2)) == {"Organisation": 1, "OperationalError": 1}


def test_the_constraint_refuses_what_a_service_does_not(real_cast: Cast) -> None:
    """The control of the constraint: it is all that is left if a writer forgets the condition."""
    rows = company(real_cast, {"company": 75})
    quota = OrganisationQuota.objects.filter(organisation=rows["company"])
    with pytest.raises(Exception, match="organisation_quota_never_exceeded"):
        quota.update(used=76)
    with without_constraint(OrganisationQuota, "organisation_quota_never_exceeded"):
        quota.update(used=76)


# What is placed in an organisation while it is removed


def removed_meanwhile(cast: Cast, pairs: int) -> list[Any]:
    """Create a tenant, a part and a quota in each of many organisations, while that is removed."""
    racers: list[Callable[[], Any]] = []
    for number in range(pairs):
        row = organisations.create_organisation(principal=SYSTEM, slug=f"short-{number}", name="Short")
        racers.append(
            (
                partial(tenants.create_tenant, principal=SYSTEM, slug=f"late-{number}", name="Late", organisation=row),
                partial(tenants.change_tenant, principal=SYSTEM, tenant=cast.acme, organisation=row),
                partial(organisations.create_organisation, principal=SYSTEM, slug=f"p-{number}", name="P", parent=row),
                partial(limit, row, 10),
            )[number % 4]
        )
        racers.append(partial(organisations.delete_organisation, principal=SYSTEM, organisation=row))
    return race(racers)


def test_what_is_placed_in_an_organisation_that_is_removed_meanwhile_is_refused_in_words(real_cast: Cast) -> None:
    results = removed_meanwhile(real_cast, 32)
    failed = [one for one in results if isinstance(one, Exception)]
    assert {type(one) for one in failed} <= {Conflict, organisations.OrganisationInUse}
    gone = [one for one in failed if type(one) is Conflict]
    assert gone
    assert all("was removed meanwhile: choose another one" in one.detail for one in gone)


def test_control_without_a_second_look_the_database_refuses_it(
    real_cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(organisations, "require_there", lambda _: None)
    assert outcomes(removed_meanwhile(real_cast, 32))["IntegrityError"] > 0
