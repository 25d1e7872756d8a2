"""Races of moves on PostgreSQL, with a connection per racer; the dangerous one beside a control."""

import random
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from django.db.models import F

from apps.accounting.services.ledger_check import differences
from apps.nodes.models import Gpu
from apps.nodes.services import capacity
from apps.quotas.principals import SYSTEM
from apps.scheduling.models import Assignment, Claim
from apps.scheduling.services.claims.lifecycle import WrongState, release_claim
from apps.scheduling.services.cycles.rounds import run_round
from apps.suspension import moving
from apps.suspension.moving import CannotMove, NoRoomToMove, move_claim
from tests.cast import GIB, Cast, Machine, ask, assert_books_agree, give_plenty
from tests.racing import outcomes, race
from tests.suspension.test_races import running

pytestmark = pytest.mark.django_db(transaction=True)
RACERS = 40
# Shares of 5 % for which one GPU has room.
ROOM = 20


def moves(claims: list[Claim], *gpus: Gpu) -> list[Callable[[], Any]]:
    return [partial(move_claim, principal=SYSTEM, claim=claim, gpus=[gpu.uuid for gpu in gpus]) for claim in claims]


def move_all_to_a_gpu_for_twenty(cast: Cast) -> Counter[str]:
    give_plenty(cast.acme)
    machine = Machine("gpu1", cast.pool, host_memory_mib=200 * GIB)
    return outcomes(race(moves(running(cast, machine, RACERS), machine.gpu(3))))


def test_forty_moves_to_a_gpu_with_room_for_twenty_move_exactly_twenty(real_cast: Cast) -> None:
    assert move_all_to_a_gpu_for_twenty(real_cast) == {"Claim": ROOM, "NoRoomToMove": RACERS - ROOM}
    assert sorted(Gpu.objects.values_list("core_used", flat=True)) == [0, 100, 100, 100]
    assert Assignment.objects.filter(other_gpu__isnull=False).count() == ROOM
    assert_books_agree()


def naive_take(*, gpu_id: int, core: int, memory_mib: int) -> bool:
    """Read, check, write: unlike `capacity`."""
    gpu = Gpu.objects.get(pk=gpu_id)
    if gpu.core_free < core or gpu.memory_free_mib < memory_mib:
        return False
    more = {"core_used": F("core_used") + core, "memory_used_mib": F("memory_used_mib") + memory_mib}
    Gpu.objects.filter(pk=gpu_id).update(**more)
    return True


def test_control_the_race_for_the_gpu_is_real_without_the_guards(
    real_cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capacity, "take", naive_take)
    monkeypatch.setattr(moving, "lock_gpus", Gpu.objects.in_bulk)
    # More find room than there is; the row's constraint is the last that stands.
    assert move_all_to_a_gpu_for_twenty(real_cast)["NoRoomToMove"] < RACERS - ROOM


def test_moves_both_ways_rounds_reports_and_releases_leave_the_books_in_step(real_cast: Cast) -> None:
    give_plenty(real_cast.acme)
    machine = Machine("gpu1", real_cast.pool, host_memory_mib=200 * GIB)
    claims = running(real_cast, machine, 16)
    for wave in range(3):
        gpus = [machine.gpu(index) for index in range(4)]
        for number in range(4):
            ask(real_cast, core_request=20, memory_mib=GIB, name=f"w{wave}-{number}")
        acts = [act for claim in claims for act in moves([claim], random.choice(gpus))]  # noqa: S311
        acts += [partial(run_round, real_cast.pool) for _ in range(3)] + [machine.obey] * 6
        acts += [partial(release_claim, principal=SYSTEM, claim=claims.pop())]
        random.shuffle(acts)
        found = outcomes(race(acts))
        refused = {error.__name__ for error in (WrongState, CannotMove, NoRoomToMove)}
        assert set(found) <= {"Claim", "NoneType", "Round", *refused}, found
        assert_books_agree()
    for _ in range(4):
        machine.obey()
    assert not Assignment.objects.live().filter(other_gpu__isnull=False).exists()
    assert not differences()
    assert_books_agree()
