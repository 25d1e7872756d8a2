"""The rotation's runs: claims that do not fit together share a GPU by time, whatever happens to them meanwhile."""

from datetime import timedelta
from unittest import mock

import pytest
from django.utils import timezone

from apps.quotas.models import Pool
from apps.quotas.principals import SYSTEM
from apps.scheduling.models import Claim, RotationMember
from apps.scheduling.services.claims.lifecycle import release_claim
from apps.scheduling.services.claims.resize import resize_claim
from apps.scheduling.services.claims.spec import ClaimChanges
from apps.scheduling.services.cycles.rounds import run_round
from apps.scheduling.services.reclaiming import preemption
from apps.suspension.rotation import rotating
from apps.suspension.rotation.planning import Rules, plan
from apps.suspension.rotation.scene import picture
from apps.suspension.services import resume_claim, suspend_claim
from tests.cast import GIB, Cast, Machine, ask, assert_books_agree, used
from tests.suspension.rotations import LONG, SLICE, Clock, clock, machine, running, served, states, work

__all__ = ["clock", "machine"]
pytestmark = pytest.mark.django_db


def test_three_claims_of_which_one_fits_are_in_one_after_the_other(cast: Cast, machine: Machine, clock: Clock) -> None:
    claims = running(cast, machine, clock)
    assert states(claims) == ["active", "queued", "queued"]
    order = []
    for _ in range(9):
        work(cast, machine, clock)
        clock.forward(LONG)
        assert_books_agree()
        order += [number for number, state in enumerate(states(claims)) if state == "active"]
    assert [sorted(order[at : at + 3]) for at in (0, 3, 6)] == [[0, 1, 2]] * 3
    parts = [served(claim) for claim in claims]
    assert max(parts) - min(parts) <= LONG.total_seconds() + 10
    assert {claim.suspended_by for claim in Claim.objects.all()} == {"", "rotation"}
    assert used(cast.acme)["core_percent"] == 100, "who is out is charged no GPU"


def test_a_slice_is_ten_times_as_long_as_the_swap_takes(cast: Cast, machine: Machine, clock: Clock) -> None:
    claims = [ask(cast, core_request=100, memory_mib=20 * GIB, name=f"c{number}") for number in range(3)]
    run_round(cast.pool)
    work(cast, machine, clock)
    # By the estimate of a claim that was never out: 10 x (0.5 + 20 GiB / 1.5 GiB/s).
    clock.forward(timedelta(seconds=120))
    work(cast, machine, clock)
    assert states(claims) == ["active", "queued", "queued"]
    clock.forward(timedelta(seconds=30))
    work(cast, machine, clock)
    assert states(claims) == ["suspended", "active", "queued"]


def test_no_more_claims_come_in_than_the_ratio_allows(cast: Cast, machine: Machine, clock: Clock) -> None:
    Pool.objects.update(oversubscribe=2)
    claims = running(cast, machine, clock)
    for _ in range(4):
        work(cast, machine, clock)
        clock.forward(LONG)
    assert states(claims)[2] == "queued"
    assert sorted(states(claims)[:2]) == ["active", "suspended"]
    release_claim(principal=SYSTEM, claim=claims[0])
    for _ in range(3):
        work(cast, machine, clock)
        clock.forward(LONG)
    assert sorted(states(claims)[1:]) == ["active", "suspended"]


def test_when_there_is_room_for_all_all_are_in(cast: Cast, machine: Machine, clock: Clock) -> None:
    claims = running(cast, machine, clock, core_request=50, memory_mib=8 * GIB)
    work(cast, machine, clock)
    assert sorted(states(claims)) == ["active", "active", "suspended"]
    release_claim(principal=SYSTEM, claim=claims[1])
    work(cast, machine, clock, runs=6)
    assert sorted(states(claims)) == ["active", "active", "released"]
    assert not RotationMember.objects.exists(), "nothing waits: the rotation is over"
    assert_books_agree()


def test_switched_off_everybody_comes_back_as_there_is_room(cast: Cast, machine: Machine, clock: Clock) -> None:
    claims = running(cast, machine, clock)
    for _ in range(3):
        work(cast, machine, clock)
        clock.forward(LONG)
    Pool.objects.update(oversubscribe=None)
    work(cast, machine, clock)
    assert sorted(states(claims)) == ["active", "resuming", "resuming"]
    for _ in range(2):
        inside = Claim.objects.get(state="active")
        release_claim(principal=SYSTEM, claim=inside)
        work(cast, machine, clock)
    assert sorted(states(claims)) == ["active", "released", "released"]
    assert not RotationMember.objects.exists()
    assert_books_agree()


def test_lower_priority_never_puts_a_claim_out(cast: Cast, machine: Machine, clock: Clock) -> None:
    first = ask(cast, core_request=100, priority=5, name="high")
    run_round(cast.pool)
    low = ask(cast, core_request=100, name="low")
    work(cast, machine, clock)
    clock.forward(LONG)
    work(cast, machine, clock)
    assert states([first, low]) == ["active", "queued"]
    higher = ask(cast, core_request=100, priority=9, name="higher")
    run_round(cast.pool)
    clock.forward(LONG)
    work(cast, machine, clock)
    assert states([first, low, higher]) == ["suspended", "queued", "active"]
    clock.forward(LONG)
    work(cast, machine, clock)
    assert states([first, low, higher]) == ["suspended", "queued", "active"], "it gives way to nobody"


@pytest.mark.parametrize("late", [False, True])
def test_a_claim_that_opts_out_stays_in(cast: Cast, machine: Machine, clock: Clock, *, late: bool) -> None:
    claims = running(cast, machine, clock, rebalance=late)
    if late:
        resize_claim(principal=SYSTEM, claim=claims[0], changes=ClaimChanges(rebalance=False))
    for _ in range(2):
        work(cast, machine, clock)
        clock.forward(LONG)
    assert states(claims) == ["active", "queued", "queued"]


def test_a_claim_that_opts_out_while_it_is_out_comes_back_for_good(cast: Cast, machine: Machine, clock: Clock) -> None:
    claims = running(cast, machine, clock, 2)
    work(cast, machine, clock)
    assert states(claims) == ["suspended", "active"]
    resize_claim(principal=SYSTEM, claim=claims[0], changes=ClaimChanges(rebalance=False))
    for _ in range(6):
        clock.forward(LONG)
        work(cast, machine, clock)
    assert states(claims)[0] == "active"
    assert Claim.objects.filter(state="active").count() == 1


def test_the_owners_suspension_takes_a_claim_out_of_the_rotation(cast: Cast, machine: Machine, clock: Clock) -> None:
    claims = running(cast, machine, clock, 2)
    work(cast, machine, clock)
    suspend_claim(principal=SYSTEM, claim=claims[0])
    for _ in range(3):
        clock.forward(LONG)
        work(cast, machine, clock)
    assert states(claims) == ["suspended", "active"]
    assert not RotationMember.objects.filter(claim=claims[0]).exists()
    resume_claim(principal=SYSTEM, claim=claims[0])
    clock.forward(LONG)
    work(cast, machine, clock, runs=8)
    assert states(claims) == ["active", "suspended"], "it waits for its GPU, and another one makes room"


def test_the_room_of_a_swap_is_nobody_elses(cast: Cast, machine: Machine, clock: Clock) -> None:
    claims = running(cast, machine, clock, 2)
    work(cast, machine, clock)
    clock.forward(LONG)
    rotating.drive()
    assert states(claims) == ["resuming", "suspending"]
    # It outranks them all, and could be placed as soon as the room is free.
    other = ask(cast, core_request=10, memory_mib=GIB, priority=9, rebalance=False, name="other")
    preemption.drive()
    machine.obey()
    run_round(cast.pool)
    assert states([*claims, other]) == ["resuming", "suspended", "queued"]
    assert Claim.objects.get(pk=claims[0].pk).charged_vgpus == 1
    work(cast, machine, clock)
    assert states([*claims, other]) == ["active", "suspended", "queued"]


def test_a_run_that_is_killed_between_two_claims_needs_no_repair(cast: Cast, machine: Machine, clock: Clock) -> None:
    claims = running(cast, machine, clock)
    with mock.patch.object(rotating, "_let_in", side_effect=KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
        rotating.drive()
    assert states(claims)[0] == "suspending"
    work(cast, machine, clock, runs=6)
    assert states(claims) == ["suspended", "active", "queued"]


def test_what_changes_between_look_and_order_is_left_alone(cast: Cast, machine: Machine, clock: Clock) -> None:
    claims = running(cast, machine, clock)
    now = timezone.now()
    look = picture(cast.pool, now=now)
    swaps = plan(Rules(3, SLICE), look.scene)
    assert swaps[0].out == (str(claims[0].pk),)
    resize_claim(principal=SYSTEM, claim=claims[0], changes=ClaimChanges(rebalance=False))
    assert rotating._make(look, swaps, now) == (0, None)
    assert states(claims) == ["active", "queued", "queued"]
    assert not Claim.objects.filter(nominated_gpus__isnull=False).exists()
