"""Two servers that take one run's output and reports at once, as an agent that reconnects to another one makes them."""

from collections.abc import Callable
from functools import partial

import pytest

from agent import wire
from apps.jobs.models import Job, JobOutput
from apps.jobs.services import reports
from apps.nodes.models import Node
from apps.quotas.models import AuditEvent
from apps.scheduling.models import Assignment
from tests.cast import Cast, Machine
from tests.jobs.acting import fresh, started
from tests.racing import outcomes, race, without_constraint

pytestmark = pytest.mark.django_db(transaction=True)

WHOLE = b"".join(b"%05d\n" % number for number in range(60))
SERVERS = 6


def send_all(node: Node, run_uid: str, size: int) -> None:
    """Send the output in pieces of this size, as an agent does: after a gap it goes back."""
    at = 0
    while at < len(WHOLE):
        stored = reports.take_output(node, wire.Output(uid=run_uid, offset=at, data=WHOLE[at : at + size]))
        at = at + size if stored is None else max(stored, at + 1)


def race_output(cast: Cast, machine: Machine) -> tuple[Job, list[object]]:
    """Let each server take the whole output, in pieces of another size."""
    job = started(cast, machine)
    senders: list[Callable[[], None]] = [
        partial(send_all, machine.node, str(job.run_uid), 7 + 4 * number) for number in range(SERVERS)
    ]
    return job, race(senders)


def stored_of(job: Job) -> bytes:
    return b"".join(bytes(data) for data in JobOutput.objects.filter(job=job).values_list("data", flat=True))


def test_output_that_two_servers_take_at_once_is_stored_once_and_without_a_hole(
    real_cast: Cast, machine_of: Machine
) -> None:
    job, results = race_output(real_cast, machine_of)
    assert outcomes(results) == {"NoneType": SERVERS}
    assert stored_of(job) == WHOLE
    offsets = list(JobOutput.objects.filter(job=job).values_list("offset", flat=True))
    assert offsets == sorted(set(offsets))
    job = fresh(job)
    assert (job.output_bytes, job.stored_bytes) == (len(WHOLE), len(WHOLE))


def read_unlocked(node: Node, run_uid: str) -> Job | None:
    """Read as `reports._lock_run`, without its lock."""
    there = Assignment.objects.filter(gpu__node=node).values("claim")
    jobs = Job.objects.open().select_related("tenant", "claim")
    return jobs.filter(run_uid=run_uid, claim__in=there).first()


def test_control_without_the_rows_lock_the_constraint_refuses_pieces(
    real_cast: Cast, machine_of: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reports, "_lock_run", read_unlocked)
    _, results = race_output(real_cast, machine_of)
    assert outcomes(results)["IntegrityError"] > 0


def test_control_without_both_guards_pieces_are_stored_twice(
    real_cast: Cast, machine_of: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reports, "_lock_run", read_unlocked)
    with without_constraint(JobOutput, "job_output_once"):
        job, _ = race_output(real_cast, machine_of)
        assert stored_of(job) != WHOLE
        JobOutput.objects.all().delete()


def race_end(cast: Cast, machine: Machine) -> int:
    """Let each server take the report of the end; return how often the job ended."""
    job = started(cast, machine)
    state = wire.JobState(uid=str(job.run_uid), state="ended", exit_code=0)
    race([lambda: reports.observe(machine.node, [state])] * SERVERS)
    assert fresh(job).state == "succeeded"
    return AuditEvent.objects.filter(action="job.end").count()


def test_an_end_that_two_servers_hear_at_once_is_taken_once(real_cast: Cast, machine_of: Machine) -> None:
    assert race_end(real_cast, machine_of) == 1


def test_control_without_the_rows_lock_it_ends_several_times(
    real_cast: Cast, machine_of: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reports, "_lock_run", read_unlocked)
    assert race_end(real_cast, machine_of) > 1
