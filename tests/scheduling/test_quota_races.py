"""Races for quotas, each beside a control: the same race without the guard goes wrong.

The normal run starts 16 at once, the long one 32 and 64. After each race no tenant exceeds `hard` and what it may
borrow, and ledger, claims and used amounts agree to the unit.
"""

import threading
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import pytest
from django.db import transaction

from apps.accounting.services.ledger_check import differences
from apps.quotas.models import CohortShare, LedgerEntry, ResourceQuota, Tenant
from apps.quotas.principals import SYSTEM
from apps.quotas.services import charging, cohorts, member_limits, quotas, tenants
from apps.quotas.services.charging import ChargeContext
from apps.scheduling.models import Claim
from apps.scheduling.services.claims import resize
from apps.scheduling.services.claims.lifecycle import release_claim
from apps.scheduling.services.claims.resize import resize_claim
from apps.scheduling.services.claims.spec import ClaimChanges
from tests.cast import Cast, Machine, ask, assert_books_agree, give, placed, used
from tests.racing import outcomes, race, without_constraint

pytestmark = pytest.mark.django_db(transaction=True)

RACERS = pytest.mark.parametrize(
    "racers", [16, pytest.param(32, marks=pytest.mark.long), pytest.param(64, marks=pytest.mark.long)]
)
# Long enough for every racer to read the same value, short enough to wait for.
A_MOMENT_SECONDS = 0.05


def assert_all_agrees() -> None:
    assert_books_agree()
    assert not differences()


def asks(cast: Cast, count: int, tenant: Tenant | None = None, **asked: Any) -> list[Callable[[], Claim]]:
    facts = {"core_request": 10, "memory_mib": 1, **asked}
    return [partial(ask, cast, tenant=tenant or cast.acme, **facts)] * count


def naive_take(quota: ResourceQuota, amount: int, context: ChargeContext) -> bool:
    """Read, check, write: unlike `charging`."""
    now = ResourceQuota.objects.get(pk=quota.pk)
    time.sleep(A_MOMENT_SECONDS)
    if now.hard is not None and now.used + amount > now.hard:
        return False
    ResourceQuota.objects.filter(pk=quota.pk).update(used=now.used + amount)
    return True


# The last unit


@RACERS
def test_the_last_unit_of_a_quota_goes_to_one(real_cast: Cast, racers: int) -> None:
    give(real_cast.acme, core_percent=91, memory_mib=None)
    ask(real_cast, core_request=90, memory_mib=1)
    results = race(asks(real_cast, racers, core_request=1), at_once=racers)
    assert outcomes(results) == {"Claim": 1, "QuotaExceeded": racers - 1}
    assert used(real_cast.acme)["core_percent"] == 91
    assert_all_agrees()


def test_control_without_the_guard_the_last_unit_goes_to_several(
    real_cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    give(real_cast.acme, core_percent=91, memory_mib=None)
    ask(real_cast, core_request=90, memory_mib=1)
    monkeypatch.setattr(charging, "_take", naive_take)
    assert outcomes(race(asks(real_cast, 16, core_request=1)))["Claim"] > 1
    assert differences()


# Two resources, in crossed order


def slowly(take: Callable[..., bool]) -> Callable[..., bool]:
    """Wait between the first resource and the second, so that another racer can intervene."""

    def take_and_wait(*args: Any) -> bool:
        taken = take(*args)
        time.sleep(A_MOMENT_SECONDS / 10)
        return taken

    return take_and_wait


def charge_crossed(cast: Cast, racers: int) -> list[Any]:
    """Let half of them take core first and memory then, the others in the other order."""
    give(cast.acme, core_percent=None, memory_mib=None)

    def charge(order: Iterable[str]) -> None:
        claim = Claim(tenant=cast.acme, pool=cast.pool, name="x", core_request=1, core_limit=1, memory_mib=1)
        context = ChargeContext(principal=SYSTEM, tenant=cast.acme, pool=cast.pool, claim_uid=claim.uid)
        with transaction.atomic():
            charging.charge(context, amounts=dict.fromkeys(order, 1))
            claim.charged_core_percent = claim.charged_memory_mib = 1
            claim.save()

    orders = (("core_percent", "memory_mib"), ("memory_mib", "core_percent"))
    return race([partial(charge, orders[number % 2]) for number in range(racers)], at_once=racers)


@RACERS
def test_two_resources_asked_for_in_crossed_order_hold_nobody_up(
    real_cast: Cast, monkeypatch: pytest.MonkeyPatch, racers: int
) -> None:
    monkeypatch.setattr(charging, "_take", slowly(charging._take))
    assert outcomes(charge_crossed(real_cast, racers)) == {"NoneType": racers}
    assert used(real_cast.acme) == {"core_percent": racers, "memory_mib": racers}
    assert_all_agrees()


def test_control_in_the_order_in_which_they_are_asked_for_they_hold_each_other(
    real_cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_key_order = charging._covering

    def as_asked(context: ChargeContext, amounts: charging.Amounts) -> Any:
        found, levels = in_key_order(context, amounts)
        return sorted(found, key=lambda quota: list(amounts).index(quota.resource)), levels

    monkeypatch.setattr(charging, "_covering", as_asked)
    monkeypatch.setattr(charging, "_take", slowly(charging._take))
    assert outcomes(charge_crossed(real_cast, 16))["OperationalError"] >= 1  # PostgreSQL ended a deadlock


# A quota is removed while claims arrive


def removed_while_claimed(cast: Cast, monkeypatch: pytest.MonkeyPatch, racers: int) -> list[Any]:
    """Remove a quota that no claim needs: with it or without it, every claim is granted."""
    rows = give(cast.acme, core_percent=None, memory_mib=None, vgpus=100)
    in_key_order, read = charging._covering, threading.Event()

    def slowly_covering(context: ChargeContext, amounts: charging.Amounts) -> Any:
        found = in_key_order(context, amounts)
        read.set()
        time.sleep(4 * A_MOMENT_SECONDS)
        return found

    def remove() -> None:
        read.wait(timeout=30)
        quotas.delete_quota(principal=SYSTEM, quota=rows["vgpus"])

    monkeypatch.setattr(charging, "_covering", slowly_covering)
    return race([*asks(cast, racers // 2), remove, *asks(cast, racers // 2 - 1)], at_once=racers)


@RACERS
def test_a_quota_removed_while_claims_arrive_fails_none_of_them(
    real_cast: Cast, monkeypatch: pytest.MonkeyPatch, racers: int
) -> None:
    results = outcomes(removed_while_claimed(real_cast, monkeypatch, racers))
    assert results["Claim"] == racers - 1
    assert results["NoneType"] + results["InUse"] == 1
    assert_all_agrees()


def test_control_a_quota_that_is_not_removed_alone_is_missed_by_claims_under_way(
    real_cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = charging.lock_tenants

    def together(*tenants: Tenant, exclusive: bool = False) -> charging.Ties:
        return lock(*tenants)

    monkeypatch.setattr(charging, "lock_tenants", together)
    results = outcomes(removed_while_claimed(real_cast, monkeypatch, 16))
    assert results["DoesNotExist"] >= 1


# A quota is lowered while claims arrive


def lowered_while_claimed(cast: Cast, racers: int) -> tuple[ResourceQuota, list[Any]]:
    quota = give(cast.acme, core_percent=10 * racers, memory_mib=None)["core_percent"]
    lower = partial(quotas.change_quota, principal=SYSTEM, quota=quota, hard=40)
    results = race([*asks(cast, racers // 2), lower, *asks(cast, racers // 2 - 1)], at_once=racers)
    quota.refresh_from_db()
    return quota, results


@RACERS
def test_a_quota_lowered_while_claims_arrive_admits_none_above_it_from_then_on(real_cast: Cast, racers: int) -> None:
    quota, results = lowered_while_claimed(real_cast, racers)
    assert set(outcomes(results)) <= {"Claim", "QuotaExceeded", "ResourceQuota"}
    assert quota.used <= 40 + quota.excess
    # Entries are written under the quota's lock, so their keys are in the order of events.
    entries = LedgerEntry.objects.filter(resource="core_percent").order_by("pk").values_list("kind", "hard", "used")
    assert [after for kind, hard, after in entries if kind == "charge" and hard == 40 and after > 40] == []
    assert_all_agrees()


def test_control_a_quota_lowered_by_what_was_read_before_is_exceeded(
    real_cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unlocked(quota: ResourceQuota, versions: object) -> ResourceQuota:
        read = ResourceQuota.objects.get(pk=quota.pk)
        time.sleep(A_MOMENT_SECONDS * 6)
        return read

    monkeypatch.setattr(quotas, "_lock_row", unlocked)
    with without_constraint(ResourceQuota, "quota_never_exceeded"):
        quota, _ = lowered_while_claimed(real_cast, 16)
        assert quota.used > 40 + quota.excess


# Delete against resize


def deleted_and_resized(cast: Cast, racers: int, *, may_fail: frozenset[str] = frozenset()) -> list[Claim]:
    give(cast.acme, core_percent=None, memory_mib=None)
    rows = [ask(cast, core_request=10, memory_mib=1) for _ in range(racers // 2)]
    turns: list[Callable[[], Any]] = []
    for row in rows:
        turns += [
            partial(release_claim, principal=SYSTEM, claim=row),
            partial(resize_claim, principal=SYSTEM, claim=row, changes=ClaimChanges(core_request=20)),
        ]
    results = race(turns, at_once=racers)
    assert set(outcomes(results)) <= {"Claim", "WrongState"} | may_fail
    for row in rows:
        row.refresh_from_db()
    return rows


@RACERS
def test_a_claim_deleted_while_it_is_resized_gives_everything_back(real_cast: Cast, racers: int) -> None:
    assert {claim.state for claim in deleted_and_resized(real_cast, racers)} == {"released"}
    assert used(real_cast.acme) == {"core_percent": 0, "memory_mib": 0}
    assert_all_agrees()


def test_control_a_resize_that_does_not_lock_brings_a_deleted_claim_back(
    real_cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unlocked(claim: Claim, versions: object = None) -> Claim:
        read = Claim.objects.select_related("tenant", "pool").get(pk=claim.pk)
        time.sleep(A_MOMENT_SECONDS * 6)
        return read

    monkeypatch.setattr(resize, "locked", unlocked)
    # Without the lock, PostgreSQL may end a deadlock as well.
    claims = deleted_and_resized(real_cast, 8, may_fail=frozenset({"OperationalError"}))
    assert "pending" in {claim.state for claim in claims}


@RACERS
def test_placed_claims_deleted_while_they_are_resized_give_everything_back(real_cast: Cast, racers: int) -> None:
    give(real_cast.acme, core_percent=None, memory_mib=None)
    machine = Machine("gpu1", real_cast.pool, gpus=4)
    rows = [placed(real_cast, machine, core_request=10, memory_mib=1)[0] for _ in range(8)]
    turns: list[Callable[[], Any]] = []
    for number in range(racers):
        row = rows[number % len(rows)]
        resized = partial(resize_claim, principal=SYSTEM, claim=row, changes=ClaimChanges(core_request=5 + number % 20))
        turns.append(partial(release_claim, principal=SYSTEM, claim=row) if number >= racers - 8 else resized)
    assert set(outcomes(race(turns, at_once=racers))) <= {"Claim", "WrongState", "NoRoom"}
    machine.obey()
    assert set(Claim.objects.values_list("state", flat=True)) == {"released"}
    assert used(real_cast.acme) == {"core_percent": 0, "memory_mib": 0}
    assert_all_agrees()


# A cohort lends while the lender claims


def in_a_cohort(cast: Cast, **limits: int) -> None:
    for tenant in (cast.acme, cast.globex):
        tenants.change_tenant(principal=SYSTEM, tenant=tenant, cohort="ml")
        give(tenant, memory_mib=None)
    for tenant, own in ((cast.acme, {}), (cast.globex, limits)):
        quotas.create_quota(principal=SYSTEM, tenant=tenant, pool=None, resource="core_percent", hard=40, **own)


def lender_and_borrower(cast: Cast, racers: int) -> dict[str, int]:
    """Return the amounts of the borrower (acme) and the lender (globex) after both requested everything."""
    tenants_in_turn = [cast.acme, cast.globex] * (racers // 2)
    results = race([turn for tenant in tenants_in_turn for turn in asks(cast, 1, tenant)], at_once=racers)
    assert set(outcomes(results)) <= {"Claim", "QuotaExceeded"}
    return {tenant.slug: used(tenant)["core_percent"] for tenant in (cast.acme, cast.globex)}


@RACERS
def test_borrowers_and_the_lender_together_get_exactly_what_there_is(real_cast: Cast, racers: int) -> None:
    in_a_cohort(real_cast)
    assert sum(lender_and_borrower(real_cast, racers).values()) == 80
    assert_all_agrees()


@RACERS
def test_what_a_lender_keeps_to_itself_it_always_gets(real_cast: Cast, racers: int) -> None:
    in_a_cohort(real_cast, lending_limit=10, borrowing_limit=0)
    held = lender_and_borrower(real_cast, racers)
    assert 30 <= held["globex"] <= 40
    assert sum(held.values()) == 80
    assert_all_agrees()


def test_control_without_the_shares_lock_a_cohort_gives_more_than_it_has(
    real_cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    def naive(quota: ResourceQuota, amount: int) -> bool:
        share = CohortShare.objects.get(quotas=quota)
        time.sleep(A_MOMENT_SECONDS)
        if quota.hard is not None:
            if share.taken + amount > share.lendable:
                return False
            CohortShare.objects.filter(pk=share.pk).update(taken=share.taken + amount)
        return True

    in_a_cohort(real_cast)
    monkeypatch.setattr(cohorts, "lock", lambda share_ids: None)
    monkeypatch.setattr(cohorts, "take", naive)
    assert sum(lender_and_borrower(real_cast, 32).values()) > 80
    assert differences()


@RACERS
def test_tenants_that_leave_a_cohort_while_it_is_charged_leave_no_debt(real_cast: Cast, racers: int) -> None:
    in_a_cohort(real_cast)

    def leave_and_return() -> None:
        for cohort in (None, "ml", "web", "ml"):
            tenants.change_tenant(principal=SYSTEM, tenant=real_cast.globex, cohort=cohort)

    turns = [*asks(real_cast, racers // 2 - 1), leave_and_return, *asks(real_cast, racers // 2, real_cast.globex)]
    got = outcomes(race(turns, at_once=racers))
    assert set(got) <= {"Claim", "QuotaExceeded", "NoneType", "CohortInUse"}
    assert sum(used(tenant)["core_percent"] for tenant in (real_cast.acme, real_cast.globex)) <= 80
    assert_all_agrees()


# One member, several tokens


def claimed_by_one_member(cast: Cast, racers: int) -> int:
    """Count the claims of ten percent that are granted to a member with a limit of forty."""
    give(cast.acme, core_percent=None, memory_mib=None)
    member_limits.create_limit(principal=SYSTEM, tenant=cast.acme, user=None, resource="core_percent", hard=40)
    results = race(asks(cast, racers, principal=cast.member), at_once=racers)
    assert set(outcomes(results)) <= {"Claim", "MemberLimitExceeded"}
    return outcomes(results)["Claim"]


@RACERS
def test_one_member_gets_exactly_what_it_may_hold(real_cast: Cast, racers: int) -> None:
    assert claimed_by_one_member(real_cast, racers) == 4
    assert_all_agrees()


def test_control_without_the_memberships_lock_a_member_gets_more(
    real_cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(member_limits, "lock", lambda tenant, user_id, resources: {"core_percent": 40})
    assert claimed_by_one_member(real_cast, 16) > 4
