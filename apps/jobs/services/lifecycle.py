"""Making and stopping jobs, and the ends of their runs."""

import json
import uuid
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from django.db import transaction
from django.utils import timezone

from apps.jobs.hints import job_changed_on_commit
from apps.jobs.models import MOST_BYTES_OF_COMMAND, Job, JobKind, JobState
from apps.jobs.services.source import NOTHING, Source
from apps.quotas.models import EventKind
from apps.quotas.principals import SYSTEM, Principal
from apps.quotas.services import audit
from apps.quotas.services.webhooks.outbox import tell
from apps.scheduling.models import ClaimState
from apps.scheduling.services.claims.lifecycle import create_claim, raise_frames, release_claim
from apps.scheduling.services.claims.spec import ClaimSpec
from apps.scheduling.services.fleet.devices import RUNS_IMAGES, RUNS_JOBS
from gpucloud.api import etags
from gpucloud.errors import Conflict, Invalid

EVENT_OF = {
    JobState.SUCCEEDED: EventKind.JOB_SUCCEEDED,
    JobState.FAILED: EventKind.JOB_FAILED,
    JobState.STOPPED: EventKind.JOB_STOPPED,
}
# A run ends a little after its limit: SIGTERM, ten seconds, SIGKILL.
SECONDS_TO_END = 60
# Once on its node, an image is there; a pull may take so long (agent/jobs/container.py).
SECONDS_TO_PULL = 900


class CommandTooLong(Invalid, code="command-too-long", title="The command is too long"):
    """Command and variables together are larger than a node is told."""


class JobsNotAllowed(Conflict, code="jobs-not-allowed", title="This pool runs no jobs"):
    """The pool's operators have not allowed jobs."""


@transaction.atomic
def run_job(
    *,
    principal: Principal,
    claim: ClaimSpec,
    command: Sequence[str],
    environment: Mapping[str, str],
    time_limit_seconds: int | None,
    retries: int,
    image: str | None = None,
    source: Source = NOTHING,
    kind: JobKind = JobKind.JOB,
    idle_minutes: int | None = None,
) -> Job:
    """Make a job with its claim. Raises JobsNotAllowed, NoSuchFiles, and as `create_claim`."""
    refuse_unfit(principal, claim, command, environment)
    found = source.fields(claim.tenant)
    made = create_claim(principal=principal, spec=claim)
    job = Job.objects.create(
        tenant=claim.tenant,
        pool=claim.pool,
        claim=made,
        name=claim.name,
        command=list(command),
        environment=dict(environment),
        time_limit_seconds=time_limit_seconds,
        retries=retries,
        image=image,
        kind=kind,
        idle_minutes=idle_minutes,
        created_by=principal.name,
        user_id=principal.user_id,
        **found,
    )
    after = {"name": job.name, "claim": str(made.uid), "command": job.command, "environment": sorted(environment)}
    after |= {"image": image} if image is not None else {}
    after |= {"kind": kind} if kind != JobKind.JOB else {}
    after |= source.facts()
    audit.record(principal, "job.create", job, after=after)
    return job


def refuse_unfit(
    principal: Principal,
    claim: ClaimSpec,
    command: Sequence[str],
    environment: Mapping[str, str],
    *,
    most: int = MOST_BYTES_OF_COMMAND,
) -> None:
    """Refuse what is no job. Raises RoleMissing, JobsNotAllowed, CommandTooLong."""
    principal.require_role(claim.tenant, "member")
    if not claim.pool.jobs:
        raise JobsNotAllowed(
            f"Pool {claim.pool.name} runs no jobs: let an operator allow them in the pool's settings (`jobs`), or name "
            "another pool."
        )
    if len(json.dumps([command, environment])) > most:
        raise CommandTooLong(f"Command and variables may have {most} bytes together: put the rest into a file.")


def claim_of_job(
    *,
    time_limit_seconds: int | None,
    retries: int,
    node_selector: Mapping[str, str] | None = None,
    image: str | None = None,
    **values: Any,
) -> ClaimSpec:
    """Return the claim of a job: on nodes that run jobs, or images, for as long as all of its runs may take."""
    if time_limit_seconds is not None:
        values["time_limit_seconds"] = (time_limit_seconds + SECONDS_TO_END) * (retries + 1)
        values["time_limit_seconds"] += SECONDS_TO_PULL if image is not None else 0
    own = RUNS_JOBS | (RUNS_IMAGES if image is not None else {})
    return ClaimSpec(node_selector={**(node_selector or {}), **own}, **values)


@transaction.atomic
def stop_job(*, principal: Principal, job: Job, versions: etags.Versions = None) -> Job:
    """Order its end: SIGTERM, and SIGKILL ten seconds later; at once if it does not run. May be repeated."""
    principal.require_role(job.tenant, "member")
    job = lock_job(job, versions)
    if not job.is_open or job.stop_requested_at is not None:
        return job
    audit.record(principal, "job.stop", job, before={"state": job.state})
    by = f"stopped by {principal.name}"
    if nodes := nodes_of(job):
        job.change(stop_requested_at=timezone.now(), reason=by)
        raise_frames(nodes)
    else:
        end_job(job, JobState.STOPPED, reason=by)
    return job


def lock_job(job: Job, versions: etags.Versions = None) -> Job:
    """Return the job under its row lock. Raises PreconditionFailed."""
    return etags.lock(job, versions, "tenant", "claim", "pool")


def nodes_of(job: Job) -> set[int]:
    """Return the nodes on which its claim is placed."""
    if job.claim is None:
        return set()
    return set(job.claim.assignments.live().values_list("gpu__node_id", flat=True))


def end_job(job: Job, state: JobState, *, reason: str | None, exit_code: int | None = None) -> None:
    """End the locked job and release its claim, if it has one."""
    now = timezone.now()
    before = {"state": job.state}
    job.change(state=state, reason=reason, exit_code=exit_code, ended_at=now, run_result=None)
    job_changed_on_commit(job.uid)
    audit.record(SYSTEM, "job.end", job, before=before, after={"state": state, "exit_code": exit_code, "why": reason})
    tell(EVENT_OF[state], tenant=job.tenant, job=_facts(job), why=reason)
    if job.claim is not None and job.claim.state != ClaimState.RELEASED:
        job.claim = release_claim(principal=SYSTEM, claim=job.claim, why=f"job {job.name} has ended")


def _facts(job: Job) -> dict[str, Any]:
    """Return the job as its events have it."""
    names = ("uid", "name", "kind", "state", "exit_code", "runs", "array_index", "created_by", "started_at", "ended_at")
    return {"pool": job.pool.name, **{name: getattr(job, name) for name in names}}


def begin_again(job: Job, *, reason: str, counts: bool) -> None:
    """Let the locked job run once more under its claim. `counts`: as one of its retries."""
    job_changed_on_commit(job.uid)
    job.change(
        state=JobState.QUEUED,
        reason=reason,
        run_uid=uuid.uuid4(),
        runs=job.runs + 1,
        attempt=job.attempt + int(counts),
        run_started_at=None,
        run_node=None,
        run_result=None,
        idle_since=None,
        output_bytes=0,
        dropped_bytes=0,
    )
    if nodes := nodes_of(job):
        raise_frames(nodes)


def end_run(job: Job, *, exit_code: int | None, reason: str | None, at: datetime | None = None) -> None:
    """End the present run of the locked job: the job ends with it, or tries again."""
    if job.stop_requested_at is not None:
        end_job(job, JobState.STOPPED, reason=job.reason, exit_code=exit_code)
    elif exit_code == 0 and reason is None:
        end_job(job, JobState.SUCCEEDED, reason=None, exit_code=0)
    else:
        why = reason or f"exit code {exit_code}"
        if job.attempt <= job.retries:
            begin_again(job, reason=f"try {job.attempt} of {job.retries + 1} failed: {why}", counts=True)
        else:
            end_job(job, JobState.FAILED, reason=why, exit_code=exit_code)
