"""Rotation, orders of owners, rounds and reports at once: nothing is promised twice, and every claim can come back."""

import random
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any
from unittest import mock

import pytest
from django.db.models import F
from django.utils import timezone

from apps.accounting.services.ledger_check import differences
from apps.nodes.models import Gpu, Node
from apps.quotas.models import Pool
from apps.quotas.principals import SYSTEM
from apps.scheduling.models import Assignment, Claim
from apps.scheduling.services.claims.lifecycle import WrongState, release_claim
from apps.scheduling.services.cycles.rounds import run_round
from apps.scheduling.services.fleet import reserved
from apps.suspension.rotation import rotating
from apps.suspension.services import NodeUnreachable, NoHostMemory, resume_claim, suspend_claim
from tests.cast import GIB, Cast, Machine, ask, assert_books_agree, give_plenty
from tests.matrix import seeds
from tests.racing import race

pytestmark = pytest.mark.django_db(transaction=True)
CLAIMS = 8
REFUSALS = (WrongState, NoHostMemory, NodeUnreachable)


def begin(cast: Cast) -> tuple[Machine, list[Claim]]:
    """Create claims of which each fills a GPU, twice as many as there is room for, on two GPUs."""
    give_plenty(cast.acme)
    Pool.objects.update(oversubscribe=4, slice_seconds=10)
    cast.pool.refresh_from_db()
    machine = Machine("gpu1", cast.pool, gpus=2, host_memory_mib=500 * GIB)
    claims = [ask(cast, core_request=100, memory_mib=GIB, name=f"c{number}") for number in range(CLAIMS)]
    run_round(cast.pool)
    machine.obey()
    return machine, claims


def age() -> None:
    """Let every slice be over, and every node be heard."""
    Assignment.objects.update(in_force_at=F("in_force_at") - timedelta(minutes=10))
    Node.objects.update(last_seen_at=timezone.now())


def assert_admitted_within_the_ratio() -> None:
    for gpu in Gpu.objects.all():
        there = Assignment.objects.live().filter(gpu=gpu)
        assert sum(there.values_list("core_request", flat=True)) <= 4 * 100


@pytest.mark.parametrize("seed", seeds(2))
def test_everything_at_once_leaves_the_books_in_step(real_cast: Cast, seed: int) -> None:
    machine, claims = begin(real_cast)
    dice = random.Random(seed)  # noqa: S311 - what happens must be repeatable

    def order() -> Callable[[], Any]:
        claim = dice.choice(claims)
        kinds: list[Callable[[], Any]] = [
            rotating.drive,
            rotating.drive,
            partial(run_round, real_cast.pool),
            machine.obey,
            partial(suspend_claim, principal=SYSTEM, claim=claim),
            partial(resume_claim, principal=SYSTEM, claim=claim),
        ]
        return dice.choice(kinds)

    for _ in range(4):
        age()
        found = race([order() for _ in range(32)])
        assert not [item for item in found if isinstance(item, Exception) and not isinstance(item, REFUSALS)]
        assert_books_agree()
        assert not differences()
        assert_admitted_within_the_ratio()

    end_well(real_cast, machine, claims)


def end_well(cast: Cast, machine: Machine, claims: list[Claim]) -> None:
    """Check that everybody comes in, whatever it has come to, and that a release gives everything back."""
    for claim in Claim.objects.filter(state__in=("suspended", "suspending"), suspended_by="owner"):
        machine.obey()
        resume_claim(principal=SYSTEM, claim=claim)
    been_in = set[int]()
    # A claim that was served most during the races waits until all others have caught up with it.
    for _ in range(200):
        if len(been_in) == CLAIMS:
            break
        age()
        rotating.drive()
        run_round(cast.pool)
        machine.obey()
        been_in |= set(Claim.objects.filter(state="active").values_list("pk", flat=True))
    assert been_in == {claim.pk for claim in claims}
    assert_books_agree()
    for claim in claims:
        release_claim(principal=SYSTEM, claim=claim)
    machine.obey()
    assert Counter(Claim.objects.values_list("state", flat=True)) == {"released": CLAIMS}
    assert set(Gpu.objects.values_list("core_used", "memory_used_mib")) == {(0, 0)}
    assert Node.objects.get().host_memory_used_mib == 0


def swap_against_rounds(cast: Cast) -> str:
    """Let rounds run while a swap frees a GPU that somebody else wants, too; return the state of the one it is for."""
    machine, claims = begin(cast)
    age()
    rotating.drive()
    chosen = Claim.objects.filter(nominated_gpus__isnull=False).order_by("pk").first()
    assert chosen is not None
    # They outrank all others, and would fit into the room of the one that goes out.
    for number in range(4):
        ask(cast, core_request=100, memory_mib=GIB, priority=9, rebalance=False, name=f"urgent-{number}")
    machine.obey()
    race([lambda: run_round(cast.pool)] * 8)
    chosen.refresh_from_db()
    assert len(claims) == CLAIMS
    return chosen.state


def test_rounds_at_once_give_the_room_to_the_one_it_was_made_for(real_cast: Cast) -> None:
    assert swap_against_rounds(real_cast) == "assigned"


def test_control_without_the_nomination_another_claim_takes_the_room(real_cast: Cast) -> None:
    with mock.patch.object(reserved, "_nominated", return_value={}):
        assert swap_against_rounds(real_cast) == "queued"
