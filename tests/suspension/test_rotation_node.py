"""Rotation over the GPUs of a node: whoever is out comes in where a slice is over first, so all have equal times."""

import pytest
from django.db.models import F
from django.utils import timezone

from apps.nodes.models import Node
from apps.quotas.models import Pool
from apps.quotas.principals import SYSTEM
from apps.scheduling.models import Assignment, Claim
from apps.scheduling.services.claims.lifecycle import release_claim
from apps.scheduling.services.cycles.rounds import run_round
from apps.suspension.rotation import rotating
from apps.suspension.rotation.scene import picture
from tests.cast import GIB, Cast, Machine, assert_books_agree, give_plenty, seen
from tests.suspension.rotations import LONG, SLICE, Clock, clock, running, served, states, work

__all__ = ["clock"]
pytestmark = pytest.mark.django_db


@pytest.fixture
def machine(cast: Cast) -> Machine:
    give_plenty(cast.acme)
    Pool.objects.update(oversubscribe=3, slice_seconds=SLICE)
    cast.pool.refresh_from_db()
    return Machine("gpu1", cast.pool, gpus=2, host_memory_mib=200 * GIB)


def rotate(cast: Cast, machine: Machine, clock: Clock, slices: int) -> None:
    for _ in range(slices):
        work(cast, machine, clock)
        clock.forward(LONG)
        assert_books_agree()


def spread(claims: list[Claim]) -> float:
    """Return by how much the most served claim had more than the least served one."""
    parts = [served(claim) for claim in claims]
    return max(parts) - min(parts)


# Without moves, the claims of one GPU have a half of it each, and those of the other a third: after so many slices the
# difference is larger than the bound.
SLICES = 14
BOUND = 2 * LONG.total_seconds() + 20


@pytest.mark.parametrize("slices", [SLICES, pytest.param(40, marks=pytest.mark.long)])
def test_five_claims_have_equal_parts_of_two_gpus(cast: Cast, machine: Machine, clock: Clock, slices: int) -> None:
    claims = running(cast, machine, clock, 5)
    rotate(cast, machine, clock, slices)
    assert states(claims).count("active") == 2
    assert spread(claims) <= BOUND


def test_without_moves_those_of_the_shorter_gpu_have_more(cast: Cast, machine: Machine, clock: Clock) -> None:
    """Control: on a node that cannot move programs, three share one GPU and two the other."""
    Node.objects.update(can_move=False)
    claims = running(cast, machine, clock, 5)
    rotate(cast, machine, clock, SLICES)
    assert spread(claims) > BOUND


def test_a_gpu_that_comes_free_serves_who_is_out(cast: Cast, machine: Machine, clock: Clock) -> None:
    claims = running(cast, machine, clock, 3)
    rotate(cast, machine, clock, 1)
    assert sorted(states(claims)) == ["active", "active", "suspended"]
    out = next(claim for claim in claims if states([claim]) == ["suspended"])
    beside = Assignment.objects.live().get(claim=out).gpu
    # The one that is released is on the other GPU.
    gone = Assignment.objects.live().exclude(gpu=beside).get().claim
    release_claim(principal=SYSTEM, claim=gone)
    work(cast, machine, clock, runs=6)
    assert sorted(states(claims)) == ["active", "active", "released"]
    assert_books_agree()


def test_claims_are_counted_together_where_they_move(cast: Cast, machine: Machine) -> None:
    """The ratio of a GPU alone counts on a node that cannot move programs only."""
    assert len({gpu.group for gpu in picture(cast.pool, now=timezone.now()).scene.gpus} - {""}) == 1
    Node.objects.update(can_move=False)
    assert {gpu.group for gpu in picture(cast.pool, now=timezone.now()).scene.gpus} == {""}


@pytest.mark.parametrize(("first", "then"), [(5, 5), pytest.param(24, 12, marks=pytest.mark.long)])
def test_a_claim_of_both_gpus_takes_turns_with_claims_of_one(
    cast: Cast, machine: Machine, clock: Clock, first: int, then: int
) -> None:
    small = running(cast, machine, clock, 3)
    large = running(cast, machine, clock, 1, gpu_count=2)
    rotate(cast, machine, clock, first)
    before = [served(claim) for claim in [*small, *large]]
    rotate(cast, machine, clock, then)
    assert all(served(claim) > had for claim, had in zip([*small, *large], before, strict=True)), "nobody is left out"


def test_a_claim_that_its_node_cannot_map_rotates_on_its_own_gpu(cast: Cast, machine: Machine, clock: Clock) -> None:
    claims = running(cast, machine, clock, 3)
    rotate(cast, machine, clock, 1)
    refused = set[str]()
    for _ in range(6):
        rotating.drive()
        machine.obey()
        run_round(cast.pool)
        for row in Assignment.objects.filter(state="resuming").exclude(return_gpu=None).exclude(return_gpu=F("gpu")):
            refused.add(row.claim.name)
            machine.say(seen(row, "suspended", suspend_refused="It has no device file of this GPU."))
        machine.obey()
        clock.forward(LONG)
    assert refused
    rotate(cast, machine, clock, 3)
    before = [served(claim) for claim in claims]
    rotate(cast, machine, clock, 4)
    assert all(served(claim) > had for claim, had in zip(claims, before, strict=True)), "nobody is left out"
    assert_books_agree()
