"""Preemption by priority: if the pool allows it, a claim preempts its own tenant's claims of lower priority."""

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from apps.nodes.models import Node
from apps.quotas.models import Tenant
from apps.quotas.principals import SYSTEM
from apps.quotas.services.tenants import change_tenant, create_tenant
from apps.scheduling.models import Claim
from apps.scheduling.services.claims.sharing import change_pool
from apps.scheduling.services.cycles.rounds import run_round
from apps.scheduling.services.reclaiming import preemption
from tests.cast import GIB, Cast, Machine, ask, assert_books_agree, give, give_plenty, placed

WHOLE: dict[str, Any] = {"core_request": 100, "memory_mib": GIB}


@pytest.fixture
def machine(cast: Cast) -> Machine:
    change_pool(principal=SYSTEM, pool=cast.pool, preempt_by_priority=True)
    cast.pool.refresh_from_db()
    return Machine("gpu1", cast.pool, gpus=2)


def wants(cast: Cast, priority: int, *, tenant: Tenant | None = None) -> Claim:
    claim = ask(cast, name="urgent", priority=priority, when_over_quota="wait", tenant=tenant, **WHOLE)
    settle(cast)
    return claim


def settle(cast: Cast, machine: Machine | None = None) -> None:
    """Run a round; with a machine, end the grace, and let its agent obey."""
    Node.objects.update(last_seen_at=timezone.now())
    run_round(cast.pool)
    preemption.drive()
    if machine is not None:
        Claim.objects.filter(preempt_at__isnull=False).update(preempt_at=timezone.now())
        Node.objects.update(last_seen_at=timezone.now())
        preemption.drive()
        machine.obey()
        run_round(cast.pool)
        machine.obey()


def states() -> list[tuple[int, str]]:
    return [(row.priority, row.state) for row in Claim.objects.order_by("priority", "pk")]


def test_the_lowest_of_its_own_goes_after_a_notice_and_does_not_come_back_for_it(cast: Cast, machine: Machine) -> None:
    give_plenty(cast.acme)
    low, middle = (placed(cast, machine, priority=priority, **WHOLE)[0] for priority in (-1, 3))
    wants(cast, 5)
    low.refresh_from_db()
    middle.refresh_from_db()
    assert middle.preempt_at is None
    assert low.preempt_at is not None
    assert low.preempt_at > timezone.now() + timedelta(seconds=20)
    assert (low.reasons[0]["code"], "higher priority" in low.reasons[0]["detail"]) == ("outranked", True)
    settle(cast, machine)
    assert states() == [(-1, "queued"), (3, "active"), (5, "active")]
    for _ in range(3):
        settle(cast, machine)
    assert states() == [(-1, "queued"), (3, "active"), (5, "active")]
    assert_books_agree()


def test_not_where_the_pool_does_not_say_so(cast: Cast, machine: Machine) -> None:
    give_plenty(cast.acme)
    change_pool(principal=SYSTEM, pool=cast.pool, preempt_by_priority=False)
    for _ in range(2):
        placed(cast, machine, **WHOLE)
    wants(cast, 5)
    settle(cast, machine)
    assert states() == [(0, "active"), (0, "active"), (5, "queued")]


def test_not_where_the_pool_preempts_nothing(cast: Cast, machine: Machine) -> None:
    give_plenty(cast.acme)
    change_pool(principal=SYSTEM, pool=cast.pool, preemption_grace_seconds=None)
    for _ in range(2):
        placed(cast, machine, **WHOLE)
    wants(cast, 5)
    settle(cast, machine)
    assert states() == [(0, "active"), (0, "active"), (5, "queued")]


def test_one_of_the_same_priority_never_goes(cast: Cast, machine: Machine) -> None:
    give_plenty(cast.acme)
    for _ in range(2):
        placed(cast, machine, priority=5, **WHOLE)
    wants(cast, 5)
    settle(cast, machine)
    assert states() == [(5, "active"), (5, "active"), (5, "queued")]


def test_one_of_another_tenant_never_goes_for_its_priority(cast: Cast, machine: Machine) -> None:
    give_plenty(cast.acme, cast.globex)
    for _ in range(2):
        placed(cast, machine, tenant=cast.globex, priority=-5, **WHOLE)
    wants(cast, 5)
    settle(cast, machine)
    assert states() == [(-5, "active"), (-5, "active"), (5, "queued")]


def test_room_in_the_quota_is_made_as_well(cast: Cast, machine: Machine) -> None:
    give(cast.acme, core_percent=100, memory_mib=None)
    placed(cast, machine, **WHOLE)
    wants(cast, 5)
    settle(cast, machine)
    assert states() == [(0, "queued"), (5, "active")]
    assert_books_agree()


def test_who_would_borrow_takes_its_own_and_nobody_elses(cast: Cast, machine: Machine) -> None:
    lender = create_tenant(principal=SYSTEM, slug="initech", name="Initech")
    for tenant in (cast.acme, cast.globex, lender):
        change_tenant(principal=SYSTEM, tenant=tenant, cohort="lab")
        tenant.refresh_from_db()
        give(tenant, core_percent=100, memory_mib=None)
    # Globex has borrowed all that initech lends; acme has its own 100, and would borrow too.
    for number in range(2):
        placed(cast, machine, tenant=cast.globex, priority=-9 - number, **WHOLE)
    other = Machine("gpu2", cast.pool, gpus=1)
    own = placed(cast, other, **WHOLE)[0]
    wants(cast, 5)
    told = Claim.objects.filter(preempt_at__isnull=False)
    assert [claim.pk for claim in told] == [own.pk]


def test_a_dry_run_says_who_would_go(cast: Cast, machine: Machine) -> None:
    give_plenty(cast.acme)
    for priority in (1, 2):
        placed(cast, machine, priority=priority, **WHOLE)
    asked = {"tenant": "acme", "priority": 9, "when_over_quota": "wait", **WHOLE}
    reclaims = cast.max.post("claims/?dry_run=true", asked).body["reclaims"]
    assert (reclaims["claims"], reclaims["core_percent"], reclaims["tenants"]) == (1, 100, 1)
    assert cast.max.post("claims/?dry_run=true", {**asked, "priority": 1}).body["reclaims"] is None
