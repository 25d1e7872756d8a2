"""Jobs of tests, and a node's agent that reports of their runs as the test wants."""

from typing import Any

from msgspec import UNSET

from agent import wire
from apps.jobs.models import Job
from apps.jobs.services import reports
from apps.scheduling.models import Claim
from apps.scheduling.services.claims.desired import desired_state
from apps.scheduling.services.cycles.rounds import run_round
from tests.cast import Answer, Api, Cast, Machine

ASKED: dict[str, Any] = {"tenant": "acme", "command": ["true"], "core_request": 20, "memory_mib": 1024}


def post(api: Api, **asked: Any) -> Answer:
    """Ask for a job."""
    return api.post("jobs/", {**ASKED, **asked})


def made(cast: Cast, **asked: Any) -> Job:
    """Make a job."""
    answer = post(cast.max, **asked)
    assert answer.status == 201, answer.body
    return Job.objects.get(uid=answer.body["uid"])


def started(cast: Cast, machine: Machine, **asked: Any) -> Job:
    """Make a job, place its claim, and let it run."""
    job = made(cast, **asked)
    place(cast, machine)
    report(machine, job, "running", started_at=1.0)
    return fresh(job)


def place(cast: Cast, machine: Machine) -> None:
    """Place what waits, and let the node apply it."""
    run_round(cast.pool)
    machine.obey()


def runs(machine: Machine) -> list[wire.JobRun]:
    """Return the runs that the node is told."""
    found = desired_state(machine.node).jobs
    return [] if found is UNSET else found


def report(machine: Machine, job: Job, state: Any, **facts: Any) -> None:
    """Report the job's present run."""
    reports.observe(machine.node, [wire.JobState(uid=str(fresh(job).run_uid), state=state, **facts)])


def send(machine: Machine, job: Job, data: bytes, offset: int = 0) -> int | None:
    """Send a piece of the output of the job's present run."""
    return reports.take_output(machine.node, wire.Output(uid=str(fresh(job).run_uid), offset=offset, data=data))


def end(machine: Machine, job: Job, code: int | None = 0, **facts: Any) -> Job:
    """Report that the present run has ended."""
    report(machine, job, "ended", exit_code=code, **facts)
    return fresh(job)


def fresh(job: Job) -> Job:
    """Return the job as it is now."""
    return Job.objects.select_related("claim", "tenant").get(pk=job.pk)


def claim_of(job: Job) -> Claim:
    """Return the claim of a job that has one, as it is now."""
    return Claim.objects.get(job=job)
