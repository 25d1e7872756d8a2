"""Borrowing: its order, its amounts, and the limits of borrowers."""

from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from apps.nodes.models import Gpu
from apps.nodes.services import capacity
from apps.nodes.services.nodes import change_node
from apps.quotas.principals import SYSTEM
from apps.quotas.services.tenants import InUse, create_pool
from apps.scheduling.models import Claim
from apps.scheduling.services.claims.desired import desired_state
from apps.scheduling.services.claims.lifecycle import release_claim
from apps.scheduling.services.claims.sharing import change_pool
from apps.scheduling.services.cycles.rounds import run_round
from apps.scheduling.services.rebalancing import guarantees, proposals
from tests.cast import Cast, Machine, ask, placed
from tests.scheduling.clock import Clock
from tests.scheduling.idling import borrower, idle_lender, machine, measured, run

__all__ = ["machine"]


def test_a_node_that_carries_only_a_borrower_stays_in_its_pool(cast: Cast, machine: Machine, clock: Clock) -> None:
    lender = idle_lender(cast, machine, clock)
    borrower(cast)
    machine.obey()
    release_claim(principal=SYSTEM, claim=lender)
    machine.obey()
    gpu = machine.gpu()
    assert (gpu.core_used, gpu.core_borrowed) == (0, 60)
    other = create_pool(principal=SYSTEM, name="other")
    with pytest.raises(InUse):
        change_node(principal=SYSTEM, node=machine.node, pool=other)


def test_what_is_ahead_and_does_not_fit_starves_nobody_behind_it(
    cast: Cast, machine: Machine, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guarantees, "MOST_ASKED", 3)
    idle_lender(cast, machine, clock)
    big = [
        ask(cast, tenant=cast.globex, core_request=96, memory_mib=1024 + n, priority=5, best_effort=True)
        for n in range(10)
    ]
    small = ask(cast, tenant=cast.globex, core_request=30, best_effort=True)
    run_round(cast.pool)
    small.refresh_from_db()
    assert (small.state, small.borrowed_core) == ("assigned", 30)
    assert set(Claim.objects.filter(pk__in=[claim.pk for claim in big]).values_list("state", flat=True)) == {"queued"}


def test_a_go_at_what_is_lent_is_bounded_and_the_next_goes_on(
    cast: Cast, machine: Machine, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guarantees, "MOST_ASKED", 3)
    idle_lender(cast, machine, clock)
    claims = [ask(cast, tenant=cast.globex, core_request=96, memory_mib=1024 + n, best_effort=True) for n in range(8)]
    ends, after = list[Any](), None
    while len(ends) < 10:
        after = guarantees.place_on_lent(cast.pool, claims, fence=lambda: None, after=after)
        ends.append(after)
        if after is None:
            break
    assert ends == [(0, claims[2].pk), (0, claims[5].pk), None]


def test_a_proposal_for_a_claim_that_is_released_is_closed(cast: Cast, machine: Machine, clock: Clock) -> None:
    change_pool(principal=SYSTEM, pool=cast.pool, rebalance_mode="propose")
    claim, _ = placed(cast, machine, core_request=80)
    measured(claim, clock, core_percent=1.5)
    (found,) = run(cast)
    assert found.state == "proposed"
    assert proposals.expire_proposals() == 0
    release_claim(principal=SYSTEM, claim=claim)
    assert proposals.expire_proposals() == 1
    found.refresh_from_db()
    assert (found.state, found.words) == ("expired", "The claim is releasing.")


def test_core_that_a_borrower_has_though_its_owner_took_it_back_is_not_offered_to_another(
    cast: Cast, machine: Machine, clock: Clock
) -> None:
    lender = idle_lender(cast, machine, clock)
    borrower(cast)
    machine.obey()
    guarantees.lend(principal=SYSTEM, claim=lender, core=0, why="it wants its own")
    # Another machine lends, but less than the request.
    other = Machine("gpu2", cast.pool, gpus=1)
    Gpu.objects.filter(pk=other.gpu().pk).update(core_used=100, core_lent=10)
    claim = ask(cast, tenant=cast.globex, core_request=15, memory_mib=1024, best_effort=True)
    with CaptureQueriesContext(connection) as asked:
        assert guarantees.place_on_lent(cast.pool, [claim], fence=lambda: None) is None
    assert not [query for query in asked if query["sql"].startswith("UPDATE")]


def test_a_borrower_does_not_get_what_is_being_freed_for_another(cast: Cast, machine: Machine, clock: Clock) -> None:
    lender = idle_lender(cast, machine, clock)
    borrower(cast)
    machine.obey()
    waits = ask(cast, core_request=80)
    Claim.objects.filter(pk=waits.pk).update(nominated_gpus=[machine.gpu().uuid])
    release_claim(principal=SYSTEM, claim=lender)
    machine.obey()
    assert guarantees.own_what_is_free() == 0
    assert (machine.gpu().core_used, machine.gpu().core_borrowed) == (0, 60)
    release_claim(principal=SYSTEM, claim=waits)
    assert guarantees.own_what_is_free() == 1


def test_nothing_is_borrowed_of_a_gpu_that_has_become_sick(
    cast: Cast, machine: Machine, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    idle_lender(cast, machine, clock)
    borrow = capacity.borrow

    def sick_before(**values: Any) -> bool:
        Gpu.objects.filter(pk=machine.gpu().pk).update(unhealthy="XID 79")
        return borrow(**values)

    monkeypatch.setattr(capacity, "borrow", sick_before)
    assert borrower(cast).state == "queued"
    assert machine.gpu().core_borrowed == 0


def test_a_borrower_becomes_guaranteed_only_where_there_is_room_of_its_own(
    cast: Cast, machine: Machine, clock: Clock
) -> None:
    lender = idle_lender(cast, machine, clock)
    claim = borrower(cast)
    machine.obey()
    path = f"claims/{claim.uid}/"
    refused = cast.olga.patch(path, {"class": "guaranteed"})
    assert (refused.status, refused.body["type"]) == (409, "/problems/no-room")
    claim.refresh_from_db()
    assert (claim.best_effort, claim.borrowed_core, machine.gpu().core_borrowed) == (True, 60, 60)
    assert guaranteed_core(machine, claim) == 0
    release_claim(principal=SYSTEM, claim=lender)
    machine.obey()
    assert cast.olga.patch(path, {"class": "guaranteed"}).status == 200
    claim.refresh_from_db()
    gpu = machine.gpu()
    assert (claim.best_effort, claim.borrowed_core, gpu.core_borrowed, gpu.core_used) == (False, 0, 0, 60)
    assert guaranteed_core(machine, claim) == 60
    assert claim.charged["core_percent"] == 60
    machine.obey()
    release_claim(principal=SYSTEM, claim=claim)
    machine.obey()
    assert (machine.gpu().core_used, machine.gpu().core_borrowed) == (0, 0)


def guaranteed_core(machine: Machine, claim: Claim) -> int:
    """Return the core that the node's arbiter guarantees it."""
    (assignment,) = [one for one in desired_state(machine.node).assignments if one.claim_uid == str(claim.uid)]
    return assignment.core_request
