"""Races of elastic groups on PostgreSQL: growth, shrinking, rounds, agents and a release at once; with a control."""

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest

from apps.groups import sizing
from apps.quotas.principals import SYSTEM
from apps.quotas.services.tenants import change_tenant
from apps.scheduling.models import Claim
from apps.scheduling.services.claims.lifecycle import release_claim
from apps.scheduling.services.cycles.rounds import run_round
from apps.scheduling.services.reclaiming import preemption
from tests.cast import GIB, Cast, Machine, ask, assert_books_agree, give, give_plenty
from tests.groups.elastic import Training, train
from tests.matrix import seeds
from tests.racing import race

pytestmark = pytest.mark.django_db(transaction=True)
RUNS = 6
MOST = 3


def running(cast: Cast, *, gpus: int = 8) -> tuple[Training, Machine]:
    """Start a group of one to three members, with its first one."""
    machine = Machine("gpu1", cast.pool, gpus=gpus).stay_online()
    group = train(cast, machine, least=1, most=MOST)
    run_round(cast.pool)
    machine.obey()
    assert group.states() == "active"
    return group, machine


def members_after_runs_at_once(cast: Cast) -> int:
    give_plenty(cast.acme)
    group, _ = running(cast)
    found = race([sizing.drive] * RUNS)
    assert not [one for one in found if isinstance(one, Exception)], found
    return len(group.states().split())


def test_runs_at_once_grow_a_group_to_its_most(real_cast: Cast) -> None:
    assert members_after_runs_at_once(real_cast) == MOST
    assert_books_agree()


@contextmanager
def everybody(_name: str) -> Iterator[bool]:
    """Let every run believe that it is the only one."""
    yield True


def test_control_without_the_lock_of_a_run_it_grows_beyond(real_cast: Cast, monkeypatch: pytest.MonkeyPatch) -> None:
    find = sizing._find_room

    def slowly(*about: Any) -> int:
        found = find(*about)
        time.sleep(0.5)
        return found

    monkeypatch.setattr(sizing, "exclusive", everybody)
    monkeypatch.setattr(sizing, "_find_room", slowly)
    assert members_after_runs_at_once(real_cast) > MOST


@pytest.mark.parametrize("seed", seeds(2))
def test_growth_shrinking_and_a_release_at_once_leave_the_books_in_step(real_cast: Cast, seed: int) -> None:
    """A lender takes its GPUs back while the group grows, and in the last wave its owner releases it."""
    dice = random.Random(seed)  # noqa: S311 - the same race each time
    for tenant in (real_cast.acme, real_cast.globex):
        change_tenant(principal=SYSTEM, tenant=tenant, cohort="lab")
        tenant.refresh_from_db()
        give(tenant, core_percent=200, memory_mib=None)
    real_cast.pool.change(preemption_grace_seconds=0)
    group, machine = running(real_cast, gpus=4)
    wanted = [
        partial(ask, real_cast, tenant=real_cast.globex, core_request=100, memory_mib=GIB, when_over_quota="wait")
        for _ in range(2)
    ]
    for wave in range(5):
        racers: list[Callable[[], Any]] = [
            sizing.drive, sizing.drive, preemption.drive, preemption.drive, machine.obey, group_round(real_cast)
        ]  # fmt: skip
        racers += wanted if wave == 1 else []
        racers += [partial(release_claim, principal=SYSTEM, claim=group.first)] if wave == 4 else []
        dice.shuffle(racers)
        found = race(racers)
        assert not [one for one in found if isinstance(one, Exception)], found
        assert len(group.states().split()) <= MOST
        assert_books_agree()
    for _ in range(6):
        group.step()
    assert group.states() == ""
    assert set(Claim.objects.filter(tenant=real_cast.globex).values_list("state", flat=True)) == {"active"}
    assert_books_agree()


def group_round(cast: Cast) -> Callable[[], Any]:
    return partial(run_round, cast.pool)
