"""Borrowing within a cohort, and the guarantees of each tenant."""

import uuid
from typing import Any

import pytest

from apps.quotas.models import CohortShare, Pool, ResourceQuota, Tenant
from apps.quotas.principals import SYSTEM
from apps.quotas.services import quotas, tenants
from apps.quotas.services.charging import ChargeContext, charge, refund
from apps.quotas.services.cohorts import CohortInUse
from apps.quotas.services.refusals import QuotaExceeded
from apps.scheduling.services.claims.lifecycle import release_claim
from apps.scheduling.services.cycles.rounds import run_round
from tests.books import assert_shares_agree
from tests.cast import Cast, Machine, ask, give


def join(*members: Tenant, cohort: str | None = "ml") -> None:
    for tenant in members:
        tenants.change_tenant(principal=SYSTEM, tenant=tenant, cohort=cohort)


def grant(tenant: Tenant, hard: int | None, *, pool: Pool | None = None, **limits: int | None) -> ResourceQuota:
    return quotas.create_quota(principal=SYSTEM, tenant=tenant, pool=pool, resource="core_percent", hard=hard, **limits)


def take(cast: Cast, tenant: Tenant, amount: int) -> ChargeContext:
    context = ChargeContext(principal=SYSTEM, tenant=tenant, pool=cast.pool, claim_uid=uuid.uuid4())
    charge(context, amounts={"core_percent": amount})
    return context


def give_back(context: ChargeContext, amount: int) -> None:
    refund(context, amounts={"core_percent": amount})


def fresh(quota: ResourceQuota) -> ResourceQuota:
    return ResourceQuota.objects.select_related("share").get(pk=quota.pk)


def change(quota: ResourceQuota, **values: Any) -> None:
    quotas.change_quota(principal=SYSTEM, quota=quota, **values)


@pytest.fixture
def pair(cast: Cast) -> tuple[ResourceQuota, ResourceQuota]:
    """Give 100 to acme and 100 to globex, in one cohort."""
    join(cast.acme, cast.globex)
    return grant(cast.acme, 100), grant(cast.globex, 100)


Pair = tuple[ResourceQuota, ResourceQuota]


def test_what_a_tenant_leaves_another_of_its_cohort_may_use(cast: Cast, pair: Pair) -> None:
    take(cast, cast.acme, 150)
    assert (fresh(pair[0]).used, fresh(pair[0]).borrowed) == (150, 50)
    assert (fresh(pair[1]).lent, fresh(pair[1]).free) == (50, 50)
    assert_shares_agree()


def test_a_cohort_holds_no_more_than_its_quotas_together(cast: Cast, pair: Pair) -> None:
    take(cast, cast.globex, 60)
    with pytest.raises(QuotaExceeded) as refused:
        take(cast, cast.acme, 141)
    assert refused.value.facts["free"] == 140
    take(cast, cast.acme, 140)
    assert_shares_agree()


def test_without_a_cohort_nothing_is_borrowed(cast: Cast) -> None:
    grant(cast.acme, 100, borrowing_limit=50)
    grant(cast.globex, 100)
    with pytest.raises(QuotaExceeded):
        take(cast, cast.acme, 101)


def test_another_cohort_lends_nothing(cast: Cast) -> None:
    join(cast.acme, cohort="ml")
    join(cast.globex, cohort="web")
    grant(cast.acme, 100)
    grant(cast.globex, 100)
    with pytest.raises(QuotaExceeded):
        take(cast, cast.acme, 101)


def test_nobody_borrows_more_than_its_borrowing_limit(cast: Cast, pair: Pair) -> None:
    change(pair[0], borrowing_limit=30)
    with pytest.raises(QuotaExceeded):
        take(cast, cast.acme, 131)
    take(cast, cast.acme, 130)
    assert_shares_agree()


def test_nobody_lends_more_than_its_lending_limit(cast: Cast, pair: Pair) -> None:
    change(pair[1], lending_limit=20)
    with pytest.raises(QuotaExceeded):
        take(cast, cast.acme, 121)
    take(cast, cast.acme, 120)
    take(cast, cast.globex, 80)  # its reserved part is there, whatever others borrow
    with pytest.raises(QuotaExceeded):
        take(cast, cast.globex, 1)
    assert_shares_agree()


def test_a_tenant_with_nothing_of_its_own_may_live_of_what_others_lend(cast: Cast, pair: Pair) -> None:
    hooli = tenants.create_tenant(principal=SYSTEM, slug="hooli", name="Hooli", cohort="ml")
    grant(hooli, 0, borrowing_limit=150)
    take(cast, hooli, 150)
    take(cast, cast.acme, 50)
    with pytest.raises(QuotaExceeded):
        take(cast, cast.globex, 1)
    assert_shares_agree()


def test_without_a_quota_of_its_own_a_tenant_borrows_nothing(cast: Cast, pair: Pair) -> None:
    hooli = tenants.create_tenant(principal=SYSTEM, slug="hooli", name="Hooli", cohort="ml")
    with pytest.raises(QuotaExceeded):
        take(cast, hooli, 1)


def test_unlimited_quotas_neither_borrow_nor_lend(cast: Cast) -> None:
    join(cast.acme, cast.globex)
    grant(cast.acme, None)
    grant(cast.globex, 10)
    take(cast, cast.acme, 1000)
    with pytest.raises(QuotaExceeded):
        take(cast, cast.globex, 11)
    assert_shares_agree()


def test_each_pool_is_lent_apart(cast: Cast, pair: Pair) -> None:
    grant(cast.acme, 10, pool=cast.pool)
    with pytest.raises(QuotaExceeded) as refused:
        take(cast, cast.acme, 11)
    assert refused.value.facts["pool"] == "default"


def test_what_is_given_back_can_be_lent_again(cast: Cast, pair: Pair) -> None:
    context = take(cast, cast.acme, 200)
    give_back(context, 120)
    assert (fresh(pair[0]).borrowed, fresh(pair[1]).free) == (0, 120)
    take(cast, cast.globex, 120)
    assert_shares_agree()


def test_a_lender_is_told_how_much_is_lent_and_an_operator_to_whom(cast: Cast, pair: Pair) -> None:
    give(cast.acme, memory_mib=None)
    give(cast.globex, memory_mib=None)
    take(cast, cast.globex, 160)
    body = {"tenant": "acme", "core_request": 50, "memory_mib": 1}
    told = cast.max.post("claims/", body)
    assert told.code == "quota-exceeded"
    wanted = {"hard": 100, "used": 0, "requested": 50, "free": 40, "lent": 60, "cohort": "ml", "borrowers": []}
    assert {name: told.body[name] for name in wanted} == wanted
    assert "40 % of 100 % available (60 % lent" in told.body["detail"]
    assert "globex" not in told.raw.decode()
    assert cast.olga.post("claims/", body).body["borrowers"] == ["globex"]


def test_a_lender_may_wait_for_what_it_lent(cast: Cast, pair: Pair) -> None:
    for tenant in (cast.acme, cast.globex):
        give(tenant, memory_mib=None)
    machine = Machine("gpu1", cast.pool)
    borrowing = ask(cast, tenant=cast.globex, core_request=80, gpu_count=2)
    waiting = ask(cast, core_request=50, when_over_quota="wait")
    run_round(cast.pool)
    waiting.refresh_from_db()
    assert (waiting.state, waiting.reasons[0]["code"]) == ("queued", "quota-exceeded")
    assert "globex" not in waiting.reasons[0]["detail"]
    release_claim(principal=SYSTEM, claim=borrowing)
    machine.obey()
    run_round(cast.pool)
    waiting.refresh_from_db()
    assert waiting.state == "assigned"
    assert_shares_agree()


def test_a_lowered_lender_takes_nothing_away_and_gets_nothing_until_it_is_given_back(cast: Cast, pair: Pair) -> None:
    context = take(cast, cast.acme, 180)
    change(pair[1], hard=50)
    share = CohortShare.objects.get()
    assert (share.taken, share.lendable, share.excess) == (180, 150, 30)
    for tenant in (cast.acme, cast.globex):
        with pytest.raises(QuotaExceeded):
            take(cast, tenant, 1)
    give_back(context, 60)
    assert CohortShare.objects.get().excess == 0
    take(cast, cast.globex, 30)
    assert_shares_agree()


def test_a_lowered_borrowing_limit_takes_nothing_away_and_admits_nothing(cast: Cast, pair: Pair) -> None:
    take(cast, cast.acme, 150)
    change(pair[0], borrowing_limit=10)
    assert (fresh(pair[0]).used, fresh(pair[0]).excess) == (150, 40)
    with pytest.raises(QuotaExceeded):
        take(cast, cast.acme, 1)
    assert_shares_agree()


def test_what_others_have_borrowed_cannot_be_kept_to_oneself_too(cast: Cast, pair: Pair) -> None:
    take(cast, cast.acme, 150)
    with pytest.raises(CohortInUse):
        change(pair[1], lending_limit=49)
    change(pair[1], lending_limit=50)
    assert_shares_agree()


@pytest.mark.parametrize("leaver", ["acme", "globex"])
def test_neither_borrower_nor_needed_lender_can_leave(cast: Cast, pair: Pair, leaver: str) -> None:
    context = take(cast, cast.acme, 150)
    refused = cast.olga.patch(f"tenants/{leaver}/", {"cohort": None})
    assert refused.code == "cohort-in-use"
    assert_shares_agree()
    give_back(context, 50)
    assert cast.olga.patch(f"tenants/{leaver}/", {"cohort": None}).status == 200
    assert_shares_agree()
    with pytest.raises(QuotaExceeded):
        take(cast, cast.acme, 1)


def test_a_quota_that_others_live_of_cannot_be_removed(cast: Cast, pair: Pair) -> None:
    take(cast, cast.acme, 101)
    with pytest.raises(CohortInUse):
        quotas.delete_quota(principal=SYSTEM, quota=pair[1])
    assert_shares_agree()


def test_a_tenant_that_joins_brings_what_it_has_and_what_it_uses(cast: Cast) -> None:
    first, second = grant(cast.acme, 100), grant(cast.globex, 100)
    take(cast, cast.acme, 70)
    join(cast.globex, cast.acme)
    assert fresh(second).free == 130
    take(cast, cast.globex, 130)
    assert fresh(first).free == 0
    assert_shares_agree()


def test_a_tenant_that_joins_with_more_than_it_may_hold_needs_room_for_it(cast: Cast) -> None:
    first = grant(cast.acme, 100)
    take(cast, cast.acme, 100)
    change(first, hard=50)
    join(cast.globex)
    lender = grant(cast.globex, 49)
    with pytest.raises(CohortInUse):
        join(cast.acme)
    change(lender, hard=50)
    join(cast.acme)
    assert (fresh(first).excess, fresh(first).borrowed) == (0, 50)
    assert_shares_agree()


def test_limits_are_set_and_shown_by_the_api(cast: Cast) -> None:
    join(cast.acme)
    limits: dict[str, Any] = {"borrowing_limit": 10, "lending_limit": 0}
    made = cast.olga.post("quotas/", {"tenant": "acme", "resource": "core_percent", "hard": 100, **limits})
    assert {name: made.body[name] for name in limits} == limits
    path = f"quotas/{made.body['id']}/"
    changed = cast.olga.patch(path, {"borrowing_limit": None}, If_Match=made.headers["ETag"])
    assert (changed.body["borrowing_limit"], changed.body["lending_limit"], changed.body["hard"]) == (None, 0, 100)
    shown = cast.vera.get(path).body
    assert (shown["free"], shown["lent"], shown["borrowed"]) == (100, 0, 0)
