"""`manage.py scheduler` as real processes: it places, one leads, another takes over, and it ends on a signal."""

import signal
from functools import partial

import pytest
from django.db import connection
from django.utils import timezone

from apps.nodes.models import Node
from apps.quotas.principals import SYSTEM
from apps.quotas.services.quotas import change_quota
from apps.scheduling.models import Claim
from tests.cast import Cast, Machine, ask, give, give_plenty
from tests.processes import eventually
from tests.scheduling.programs import program, sessions

pytestmark = pytest.mark.django_db(transaction=True)
COMMAND = ("manage.py", "scheduler")
START_SECONDS = 20.0  # two cores, shared with other tests


@pytest.fixture
def machine(real_cast: Cast) -> Machine:
    give_plenty(real_cast.acme)
    return Machine("gpu1", real_cast.pool)


def leaders() -> int:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(DISTINCT pid) FROM pg_locks WHERE locktype = 'advisory' AND granted "
            "AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
        )
        return int(cursor.fetchone()[0])


def beat(machine: Machine) -> None:
    """Send its agent's heartbeat: starting a program may take longer than a node may be silent."""
    Node.objects.filter(pk=machine.node.pk).update(last_seen_at=timezone.now())


def is_assigned(claim: Claim) -> bool:
    return Claim.objects.filter(pk=claim.pk, state="assigned").exists()


def test_a_claim_is_placed_soon_after_its_commit(real_cast: Cast, machine: Machine) -> None:
    with program(*COMMAND):
        assert eventually(lambda: leaders() == 1, seconds=START_SECONDS)
        beat(machine)
        for _ in range(3):
            claim = ask(real_cast)
            assert eventually(partial(is_assigned, claim), seconds=5)


def test_what_waited_while_there_was_no_scheduler_is_placed_by_the_first(real_cast: Cast, machine: Machine) -> None:
    claim = ask(real_cast)
    with program(*COMMAND):
        assert eventually(lambda: leaders() == 1, seconds=START_SECONDS)
        beat(machine)
        assert eventually(lambda: is_assigned(claim), seconds=5)


def test_of_two_schedulers_one_leads_and_the_other_takes_over_when_it_is_killed(
    real_cast: Cast, machine: Machine
) -> None:
    with program(*COMMAND) as first:
        assert eventually(lambda: leaders() == 1, seconds=START_SECONDS)
        alone = sessions()
        with program(*COMMAND) as second:
            assert eventually(lambda: sessions() > alone, seconds=START_SECONDS)
            beat(machine)
            for _ in range(3):
                claim = ask(real_cast, core_request=10)
                assert eventually(partial(is_assigned, claim), seconds=5)
                assert leaders() == 1
            first.send_signal(signal.SIGKILL)
            first.wait()
            beat(machine)
            orphan = ask(real_cast, core_request=10)
            assert eventually(lambda: is_assigned(orphan), seconds=12)
            assert leaders() == 1
            assert second.poll() is None


def test_a_raised_quota_wakes_the_round(real_cast: Cast, machine: Machine) -> None:
    quota = give(real_cast.globex, core_percent=10, memory_mib=None)["core_percent"]
    claim = ask(real_cast, tenant=real_cast.globex, when_over_quota="wait")
    with program(*COMMAND):
        assert eventually(lambda: Claim.objects.filter(pk=claim.pk, state="queued").exists(), seconds=START_SECONDS)
        beat(machine)
        change_quota(principal=SYSTEM, quota=quota, hard=30)
        assert eventually(lambda: is_assigned(claim), seconds=5)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_ends_cleanly_when_it_is_told(real_cast: Cast, machine: Machine, number: signal.Signals) -> None:
    with program(*COMMAND) as process:
        assert eventually(lambda: leaders() == 1, seconds=START_SECONDS)
        process.send_signal(number)
        assert process.wait(timeout=5) == 0
        assert eventually(lambda: leaders() == 0, seconds=2)


def test_it_outlives_the_loss_of_its_sessions(real_cast: Cast, machine: Machine) -> None:
    with program(*COMMAND, LOG_LEVEL="ERROR"):
        assert eventually(lambda: leaders() == 1, seconds=START_SECONDS)
        beat(machine)
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
        claim = ask(real_cast)
        assert eventually(lambda: is_assigned(claim), seconds=12)
