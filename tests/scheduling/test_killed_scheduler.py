"""Schedulers killed by SIGKILL at random moments lose nothing and place nothing twice."""

import random
import signal
from contextlib import ExitStack
from uuid import uuid4

import pytest
from django.db.models import Count
from django.utils import timezone

from apps.accounting.services.ledger_check import differences
from apps.nodes.models import Node
from apps.quotas.principals import SYSTEM
from apps.scheduling.models import Assignment, Claim, Round
from apps.scheduling.services.claims.lifecycle import release_claim
from apps.whatif.rounds import replay
from tests.cast import Cast, Machine, ask, assert_books_agree, give_plenty, placed
from tests.processes import eventually
from tests.scheduling.programs import program

pytestmark = pytest.mark.django_db(transaction=True)
COMMAND = ("manage.py", "scheduler")
# Two cores, shared with other tests.
PATIENCE_SECONDS = 60.0
CLAIMS_BETWEEN_KILLS = 12


def beat() -> None:
    Node.objects.update(last_seen_at=timezone.now())


def is_settled() -> bool:
    beat()
    return not Claim.objects.filter(state="pending").exists()


def live_and_kill(cast: Cast, *, kills: int, seed: int) -> None:
    """Create and release claims; now and then kill one of two schedulers and start another."""
    dice = random.Random(seed)  # noqa: S311 - what happens must be repeatable
    give_plenty(cast.acme)
    machines = [Machine(f"gpu{number}", cast.pool, gpus=8) for number in range(3)]
    with ExitStack() as stack:
        schedulers = [stack.enter_context(program(*COMMAND, LOG_LEVEL="ERROR")) for _ in range(2)]
        for _ in range(kills):
            fatal = dice.randrange(CLAIMS_BETWEEN_KILLS)
            for number in range(CLAIMS_BETWEEN_KILLS):
                beat()
                ask(cast, core_request=dice.choice((5, 10)), memory_mib=100, gpu_count=dice.choice((1, 1, 3)))
                if number == fatal:
                    victim = schedulers.pop(dice.randrange(2))
                    victim.send_signal(signal.SIGKILL)
                    victim.wait()
                    schedulers.append(stack.enter_context(program(*COMMAND, LOG_LEVEL="ERROR")))
            placed = list(Claim.objects.filter(state="active"))
            for claim in dice.sample(placed, len(placed) // 2):
                release_claim(principal=SYSTEM, claim=claim)
            for machine in machines:
                machine.obey()
            assert eventually(is_settled, seconds=PATIENCE_SECONDS)


def assert_nothing_lost_or_doubled() -> None:
    live = Assignment.objects.exclude(state="released")
    on_gpus = dict(live.values_list("claim").annotate(gpus=Count("gpu", distinct=True)).order_by("claim"))
    rows = dict(live.values_list("claim").annotate(rows=Count("pk")).order_by("claim"))
    claims = Claim.objects.exclude(state="released")
    assert claims.exists()
    assert on_gpus == rows == dict(claims.exclude(state="queued").values_list("pk", "gpu_count"))
    assert_books_agree()
    assert differences() == []
    for done in Round.objects.all():
        assert all(item.agrees for item in replay(done))


def test_schedulers_killed_at_random_lose_and_double_nothing(real_cast: Cast) -> None:
    live_and_kill(real_cast, kills=2, seed=1)
    assert_nothing_lost_or_doubled()


def test_control_a_claim_that_was_placed_twice_would_be_seen(real_cast: Cast) -> None:
    give_plenty(real_cast.acme)
    machine = Machine("gpu1", real_cast.pool, gpus=2)
    placed(real_cast, machine, core_request=10)
    assert_nothing_lost_or_doubled()
    twice = Assignment.objects.get()
    twice.pk, twice.uid, twice.gpu = None, uuid4(), machine.gpu(1)
    twice.save(force_insert=True)
    with pytest.raises(AssertionError):
        assert_nothing_lost_or_doubled()


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(2, 6))
def test_many_schedulers_killed_at_random_lose_and_double_nothing(real_cast: Cast, seed: int) -> None:
    live_and_kill(real_cast, kills=25, seed=seed)
    assert_nothing_lost_or_doubled()
