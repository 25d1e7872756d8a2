"""New jobs: with their claim at once, or waiting for others, or many of them as an array."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from uuid import UUID

from django.db import transaction

from apps.jobs.models import MOST_BYTES_OF_COMMAND, Job, JobArray, JobDependency, JobKind, JobState
from apps.jobs.services import waiting
from apps.jobs.services.lifecycle import refuse_unfit, run_job
from apps.jobs.services.source import NOTHING, Source
from apps.quotas.principals import Principal
from apps.quotas.services import audit
from apps.scheduling.models import Claim
from apps.scheduling.services.claims.lifecycle import draft_claim
from apps.scheduling.services.claims.spec import UNSET, ClaimSpec
from gpucloud.errors import Missing

# Of all jobs of an array together, each of which keeps its command.
MOST_BYTES_OF_ARRAY = 16 << 20


class WaitsForUnknown(Missing, code="no-such-job", title="There is no such job"):
    """A job or an array to wait for does not exist, or not for the caller."""


@dataclass(frozen=True, kw_only=True, slots=True)
class JobSpec:
    """A new job, or an array of them."""

    claim: ClaimSpec
    command: Sequence[str]
    environment: dict[str, str] = field(default_factory=dict)
    time_limit_seconds: int | None = None
    retries: int = 0
    # The container image; None: the command runs on the node as it is.
    image: str | None = None
    # The uids of jobs and arrays, in the claim's tenant.
    after: Sequence[UUID] = ()
    after_any: Sequence[UUID] = ()
    array_size: int | None = None
    at_once: int | None = None
    source: Source = NOTHING
    kind: JobKind = JobKind.JOB
    # Of a notebook.
    idle_minutes: int | None = None


def create_job(*, principal: Principal, spec: JobSpec) -> Job:
    """Make the job; of an array return the first one. Raises as `run_job`, and WaitsForUnknown.

    A job that waits, and each of an array, gets its claim later (`waiting`): only what no quota can change is refused.
    """
    if spec.array_size is None and not (spec.after or spec.after_any):
        return run_job(
            principal=principal,
            claim=spec.claim,
            command=spec.command,
            environment=spec.environment,
            time_limit_seconds=spec.time_limit_seconds,
            retries=spec.retries,
            image=spec.image,
            source=spec.source,
            kind=spec.kind,
            idle_minutes=spec.idle_minutes,
        )
    job = _make_waiting(principal, spec)
    if job.array is not None:
        waiting.advance_array(job.array)
    else:
        # What it waits for may have ended a moment ago.
        waiting.advance(job.pk)
    job.refresh_from_db()
    return job


@transaction.atomic
def _make_waiting(principal: Principal, spec: JobSpec) -> Job:
    most = MOST_BYTES_OF_COMMAND if spec.array_size is None else MOST_BYTES_OF_ARRAY // spec.array_size
    refuse_unfit(principal, spec.claim, spec.command, spec.environment, most=min(most, MOST_BYTES_OF_COMMAND))
    # What can never be is refused now; only a quota may have room later.
    drafted = draft_claim(principal=principal, spec=spec.claim)
    found = [(_find(spec, uid), any_end) for any_end in (False, True) for uid in _uids(spec, any_end=any_end)]
    array = _make_array(principal, spec)
    jobs = Job.objects.bulk_create(_draft(principal, spec, drafted, array))
    JobDependency.objects.bulk_create(
        [
            JobDependency(
                job=job,
                on=one if isinstance(one, Job) else None,
                on_array=one if isinstance(one, JobArray) else None,
                any_end=any_end,
            )
            for job in jobs
            for one, any_end in found
        ],
        batch_size=1000,
    )
    after = {
        "name": spec.claim.name, "command": list(spec.command), "environment": sorted(spec.environment),
        "after": [str(uid) for uid in spec.after], "after_any": [str(uid) for uid in spec.after_any],
        **spec.source.facts(),
    }  # fmt: skip
    after |= {"image": spec.image} if spec.image is not None else {}
    after |= {"kind": spec.kind} if spec.kind != JobKind.JOB else {}
    if array is not None:
        audit.record(
            principal, "job-array.create", array, after={**after, "size": array.size, "at_once": array.at_once}
        )
    else:
        audit.record(principal, "job.create", jobs[0], after=after)
    return jobs[0]


def _uids(spec: JobSpec, *, any_end: bool) -> Sequence[UUID]:
    return list(dict.fromkeys(spec.after_any if any_end else spec.after))


def _find(spec: JobSpec, uid: UUID) -> Job | JobArray:
    """Return the job or the array. Raises WaitsForUnknown: also for those of other tenants, whoever asks."""
    of_tenant = {"uid": uid, "tenant": spec.claim.tenant}
    found = Job.objects.filter(**of_tenant).first() or JobArray.objects.filter(**of_tenant).first()
    if found is None:
        raise WaitsForUnknown(f"Tenant {spec.claim.tenant.slug} has neither a job nor an array {uid}.")
    return found


def _make_array(principal: Principal, spec: JobSpec) -> JobArray | None:
    if spec.array_size is None:
        return None
    return JobArray.objects.create(
        tenant=spec.claim.tenant,
        pool=spec.claim.pool,
        name=spec.claim.name,
        size=spec.array_size,
        at_once=spec.at_once,
        created_by=principal.name,
    )


def _draft(principal: Principal, spec: JobSpec, drafted: Claim, array: JobArray | None) -> list[Job]:
    """Return the waiting jobs, unsaved."""
    claim, name = claim_fields(spec.claim, drafted), spec.claim.name
    source = spec.source.fields(spec.claim.tenant)
    indexes: Sequence[int | None] = [None] if array is None else range(array.size)
    names = [name if index is None else f"{name}[{index}]" for index in indexes]
    return [
        Job(
            tenant=spec.claim.tenant,
            pool=spec.claim.pool,
            claim_spec={**claim, "name": of_job},
            array=array,
            array_index=index,
            state=JobState.WAITING,
            name=of_job,
            command=list(spec.command),
            environment=dict(spec.environment),
            time_limit_seconds=spec.time_limit_seconds,
            retries=spec.retries,
            image=spec.image,
            kind=spec.kind,
            idle_minutes=spec.idle_minutes,
            created_by=principal.name,
            user_id=principal.user_id,
            **source,
        )
        for index, of_job in zip(indexes, names, strict=True)
    ]


def claim_fields(claim: ClaimSpec, drafted: Claim) -> dict[str, object]:
    """Return the fields of a job's claim that were given, and those of its share, as JSON."""
    given = {one.name: getattr(claim, one.name) for one in fields(claim) if one.name not in {"tenant", "pool"}}
    kept = {name: value for name, value in given.items() if value is not UNSET}
    share = {name: getattr(drafted, name) for name in ("gpu_count", "core_request", "core_limit", "memory_mib")}
    return dict(json.loads(json.dumps(kept | share)))
