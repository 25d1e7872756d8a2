"""Races of suspensions on PostgreSQL, with a connection per racer; the dangerous one beside a control."""

import random
import time
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from django.db.models import F
from django.utils import timezone

from apps.accounting.services.ledger_check import differences
from apps.nodes.models import Gpu, Node
from apps.nodes.services import capacity
from apps.quotas.principals import SYSTEM
from apps.quotas.services.refusals import QuotaExceeded
from apps.scheduling.models import Claim
from apps.scheduling.models.orders import SuspendedBy
from apps.scheduling.services.claims.lifecycle import WrongState, release_claim
from apps.scheduling.services.claims.resize import NoRoom, resize_claim
from apps.scheduling.services.claims.spec import ClaimChanges
from apps.scheduling.services.cycles.rounds import run_round
from apps.suspension import services
from apps.suspension.services import NoHostMemory, resume_claim, suspend_claim
from tests.cast import GIB, Cast, Machine, ask, assert_books_agree, give, give_plenty, used
from tests.matrix import scales, seeds
from tests.racing import outcomes, race

pytestmark = pytest.mark.django_db(transaction=True)
RACERS = pytest.mark.parametrize("racers", scales(24, 64))
FEW = 24
# Long enough for every racer to read the same value, short enough to wait for.
A_MOMENT_SECONDS = 0.05
# Claims of 1 GiB for which the node's memory, or the quota, has room.
ROOM = 10


def running(cast: Cast, machine: Machine, count: int) -> list[Claim]:
    """Create so many active claims of 1 GiB."""
    claims = [ask(cast, core_request=5, memory_mib=GIB, name=f"c{number}") for number in range(count)]
    run_round(cast.pool)
    machine.obey()
    assert Claim.objects.filter(state="active").count() == count
    # On a busy machine a race takes longer than a node may be silent.
    Node.objects.update(last_seen_at=timezone.now() + timedelta(hours=1))
    return claims


def suspensions(claims: list[Claim]) -> list[Callable[[], Any]]:
    return [partial(suspend_claim, principal=SYSTEM, claim=claim) for claim in claims]


def suspend_all_against_a_node_for_ten(cast: Cast, racers: int = FEW) -> Counter[str]:
    give_plenty(cast.acme)
    machine = Machine("gpu1", cast.pool, host_memory_mib=ROOM * GIB).stay_online()
    return outcomes(race(suspensions(running(cast, machine, racers))))


@RACERS
def test_suspensions_against_a_node_with_memory_for_ten_suspend_exactly_ten(real_cast: Cast, racers: int) -> None:
    assert suspend_all_against_a_node_for_ten(real_cast, racers) == {"Claim": ROOM, "NoHostMemory": racers - ROOM}
    assert Node.objects.get().host_memory_used_mib == ROOM * GIB
    assert_books_agree()


def naive_take(*, node_id: int, memory_mib: int) -> bool:
    """Read, check, write: unlike `capacity`."""
    node = Node.objects.get(pk=node_id)
    time.sleep(A_MOMENT_SECONDS)
    if node.host_memory_used_mib + memory_mib > node.host_memory_mib:
        return False
    Node.objects.filter(pk=node_id).update(host_memory_used_mib=F("host_memory_used_mib") + memory_mib)
    return True


def test_control_the_race_for_a_nodes_memory_is_real_without_the_guard(
    real_cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capacity, "take_host_memory", naive_take)
    assert suspend_all_against_a_node_for_ten(real_cast)["Claim"] > ROOM


@RACERS
def test_a_quota_of_host_memory_for_ten_suspends_exactly_ten(real_cast: Cast, racers: int) -> None:
    give_plenty(real_cast.acme)
    machine = Machine("gpu1", real_cast.pool, host_memory_mib=200 * GIB).stay_online()
    claims = running(real_cast, machine, racers)
    give(real_cast.acme, host_memory_mib=ROOM * GIB)
    assert outcomes(race(suspensions(claims))) == {"Claim": ROOM, "QuotaExceeded": racers - ROOM}
    assert used(real_cast.acme)["host_memory_mib"] == ROOM * GIB
    assert_books_agree()


# Refusals that a racer may get; anything else is a failure.
REFUSALS = (WrongState, NoRoom, NoHostMemory, QuotaExceeded)


def order(cast: Cast, machine: Machine, claim: Claim, dice: random.Random) -> Callable[[], Any]:
    """Return a random act: on the claim, or of the platform."""
    changes = ClaimChanges(memory_mib=dice.choice((1, 2)) * GIB)
    kinds: list[Callable[[], Any]] = [
        partial(suspend_claim, principal=SYSTEM, claim=claim),
        partial(suspend_claim, principal=SYSTEM, claim=claim),
        partial(resume_claim, principal=SYSTEM, claim=claim),
        partial(resize_claim, principal=SYSTEM, claim=claim, changes=changes),
        partial(run_round, cast.pool),
        machine.obey,
    ]
    return dice.choice(kinds)


def race_and_check(racers: list[Callable[[], Any]]) -> None:
    found = race(racers)
    assert not [item for item in found if isinstance(item, Exception) and not isinstance(item, REFUSALS)]
    assert_books_agree()
    assert not differences()


@RACERS
@pytest.mark.parametrize("seed", seeds(3))
def test_orders_at_once_leave_quota_gpus_and_host_memory_in_step(real_cast: Cast, seed: int, racers: int) -> None:
    """Suspend, resume, resize, release, rounds and the agent's reports, all at once and on few claims."""
    give_plenty(real_cast.acme)
    give(real_cast.acme, host_memory_mib=6 * GIB)
    machine = Machine("gpu1", real_cast.pool, gpus=2, host_memory_mib=5 * GIB).stay_online()
    claims = running(real_cast, machine, 8)
    dice = random.Random(seed)  # noqa: S311 - what happens must be repeatable

    def orders(count: int) -> list[Callable[[], Any]]:
        return [order(real_cast, machine, dice.choice(claims), dice) for _ in range(count)]

    for _ in range(3):
        race_and_check(orders(racers))
    ends: list[Callable[[], Any]] = [partial(release_claim, principal=SYSTEM, claim=claim) for claim in claims]
    race_and_check([*ends, *orders(racers - len(ends))])
    machine.obey()
    assert Counter(Claim.objects.values_list("state", flat=True)) == {"released": 8}
    assert set(used(real_cast.acme).values()) == {0}
    assert set(Gpu.objects.values_list("core_used", "memory_used_mib")) == {(0, 0)}
    assert Node.objects.get().host_memory_used_mib == 0


def test_two_rounds_at_once_give_the_room_of_a_suspended_claim_to_one(real_cast: Cast) -> None:
    """One claim is new, the other resumes; the GPU has room for one of them."""
    give_plenty(real_cast.acme)
    machine = Machine("gpu1", real_cast.pool, gpus=1, host_memory_mib=100 * GIB).stay_online()
    claim = ask(real_cast, core_request=60)
    run_round(real_cast.pool)
    machine.obey()
    suspend_claim(principal=SYSTEM, claim=claim)
    machine.obey()
    ask(real_cast, core_request=60)
    resume_claim(principal=SYSTEM, claim=claim)
    race([lambda: run_round(real_cast.pool)] * 4)
    assert machine.gpu().core_used == 60
    claim.refresh_from_db()
    assert (claim.state, claim.charged["core_percent"]) == ("resuming", 60), "it is older than the new claim"
    assert Claim.objects.exclude(pk=claim.pk).get().state == "queued"
    assert_books_agree()


def several_orders_for_one_claim(cast: Cast) -> tuple[int, Counter[str]]:
    """Let a drain, a preemption, a rule and its owner suspend a claim of 1 GiB at once; return what is charged."""
    give_plenty(cast.acme)
    machine = Machine("gpu1", cast.pool, gpus=1, host_memory_mib=100 * GIB)
    (claim,) = running(cast, machine, 1)
    orders: list[Callable[[], Any]] = [
        partial(suspend_claim, principal=SYSTEM, claim=claim, by=by) for by in SuspendedBy.values * 3
    ]
    found = outcomes(race(orders))
    return Node.objects.get().host_memory_used_mib, found


def test_several_orders_at_once_charge_a_claim_once(real_cast: Cast) -> None:
    charged, found = several_orders_for_one_claim(real_cast)
    assert (charged, found) == (GIB, {"Claim": 3 * len(SuspendedBy.values)})
    assert_books_agree()


def test_control_without_the_claims_lock_several_orders_charge_it_several_times(
    real_cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        services, "locked", lambda claim, versions: Claim.objects.select_related("tenant", "pool").get(pk=claim.pk)
    )
    charged, _ = several_orders_for_one_claim(real_cast)
    assert charged > GIB
