"""Races of schedules and of resumptions elsewhere on PostgreSQL, with a connection per racer and controls."""

import random
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from apps.nodes.models import Gpu
from apps.quotas.models import AuditEvent
from apps.quotas.principals import SYSTEM
from apps.scheduling.models import Claim
from apps.scheduling.services.claims.lifecycle import WrongState, release_claim
from apps.scheduling.services.claims.resize import resize_claim
from apps.scheduling.services.claims.spec import ClaimChanges
from apps.scheduling.services.cycles.rounds import run_round
from apps.suspension import scheduled
from apps.suspension.services import resume_claim, suspend_claim
from tests.cast import GIB, Cast, Machine, assert_books_agree, give_plenty
from tests.matrix import seeds
from tests.racing import race
from tests.suspension.rotations import Clock, clock
from tests.suspension.test_resuming_elsewhere import occupy, suspended
from tests.suspension.test_schedules import at_work, day, go

__all__ = ["clock"]
pytestmark = pytest.mark.django_db(transaction=True)
RUNS = 8


@pytest.fixture
def node(real_cast: Cast) -> Machine:
    give_plenty(real_cast.acme, real_cast.globex)
    return Machine("gpu1", real_cast.pool, host_memory_mib=40 * GIB).stay_online()


def notices(cast: Cast, node: Machine, clock: Clock) -> int:
    """Let many runs see the end of a window at one moment; return the number of notices."""
    at_work(cast, node, clock)
    clock.ahead = day(0, 17, 56) - clock.real()
    found = race([scheduled.drive] * RUNS)
    assert not [one for one in found if isinstance(one, Exception)], found
    return AuditEvent.objects.filter(action="claim.notice").count()


def test_runs_at_one_moment_give_one_notice(real_cast: Cast, node: Machine, clock: Clock) -> None:
    assert notices(real_cast, node, clock) == 1


def test_control_without_the_claims_lock_they_give_several(
    real_cast: Cast, node: Machine, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(seen: Claim) -> Claim:
        claim = Claim.objects.select_related("tenant", "pool").get(pk=seen.pk)
        time.sleep(0.3)
        return claim

    monkeypatch.setattr(scheduled, "locked", read)
    assert notices(real_cast, node, clock) > 1


@pytest.mark.parametrize("seed", seeds(2))
def test_runs_owners_rounds_and_agents_at_once_leave_the_books_in_step(
    real_cast: Cast, node: Machine, clock: Clock, seed: int
) -> None:
    dice = random.Random(seed)  # noqa: S311 - the same race each time
    claims = [at_work(real_cast, node, clock, core_request=20, memory_mib=GIB) for _ in range(6)]
    go(clock, day(0, 17, 56))

    def owner(claim: Claim) -> Callable[[], Any]:
        orders: list[Callable[[], Any]] = [
            partial(suspend_claim, principal=SYSTEM, claim=claim),
            partial(resume_claim, principal=SYSTEM, claim=claim),
            partial(resize_claim, principal=SYSTEM, claim=claim, changes=ClaimChanges(schedule="")),
            partial(release_claim, principal=SYSTEM, claim=claim),
        ]
        return dice.choice(orders)

    for moment in (day(0, 18), day(0, 19), day(1, 9), day(1, 10)):
        clock.ahead = moment - clock.real()
        node.stay_online()
        racers = [owner(claim) for claim in claims if dice.random() < 0.4]
        racers += [scheduled.drive, scheduled.drive, node.obey, partial(run_round, real_cast.pool)]
        dice.shuffle(racers)
        found = race(racers)
        assert not [one for one in found if isinstance(one, Exception) and not isinstance(one, WrongState)], found
        assert_books_agree()
    for _ in range(4):
        scheduled.drive()
        run_round(real_cast.pool)
        node.obey()
    left = Counter(f"{claim.state} {claim.suspended_by}".strip() for claim in Claim.objects.live())
    assert set(left) <= {"active", "suspended owner"}, left
    assert_books_agree()


def resumed(cast: Cast, node: Machine) -> tuple[int, list[int]]:
    """Let many rounds resume three claims, whose GPU is taken, at once; return how many, and the core in use."""
    claims = [suspended(cast, node, memory_mib=GIB, name=f"c{number}") for number in range(3)]
    occupy(cast, node, 0, 1)
    for claim in claims:
        resume_claim(principal=SYSTEM, claim=claim)
    race([partial(run_round, cast.pool)] * RUNS)
    core = list(Gpu.objects.order_by("index").values_list("core_used", flat=True))
    return Claim.objects.filter(state="resuming", charged_vgpus__gt=0).count(), core


def test_rounds_at_once_give_no_gpu_twice_to_claims_that_resume_elsewhere(real_cast: Cast, node: Machine) -> None:
    assert resumed(real_cast, node) == (2, [100, 100, 100, 100])
    assert_books_agree()
    node.obey()
    assert_books_agree()
