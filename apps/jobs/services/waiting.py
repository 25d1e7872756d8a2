"""Jobs that wait without a claim: for the end of others, or for their turn in an array.

A waiting job is charged nothing. It gets its claim in the transaction that makes it `queued`, under the lock of its
row: of two workers that find it ready, the second sees a job that waits no more. How many jobs of an array have claims
is counted under the lock of the array's row, which comes first.
"""

import logging

from django.db import DatabaseError, transaction
from django.db.models import Exists, OuterRef, Q, QuerySet

from apps.jobs.models import OPEN, UNDER_CLAIM, Job, JobArray, JobDependency, JobState
from apps.jobs.services.lifecycle import end_job
from apps.quotas.models import Role
from apps.quotas.principals import Principal, of_user
from apps.scheduling.services.claims.lifecycle import create_claim
from apps.scheduling.services.claims.spec import ClaimSpec
from gpucloud.errors import GpucloudError

logger = logging.getLogger(__name__)

# Of one pass: each costs a few milliseconds, and the next pass is five seconds later.
MOST_OF_PASS = 500
# Right after an end, before the agent that reported it is answered.
MOST_AT_ONCE = 16
ENDED_BADLY = (JobState.FAILED, JobState.STOPPED)


def advance_all() -> int:
    """Start, or end, the waiting jobs whose wait is over; return how many."""
    return _advance_each(Job.objects.all(), MOST_OF_PASS)


def advance_after(ended: Job) -> int:
    """Do so for those that waited for this job, or for its place in its array; never raises for one that cannot."""
    wanted = Q(dependencies__on=ended)
    if ended.array_id is not None:
        wanted |= Q(dependencies__on_array=ended.array_id) | Q(array=ended.array_id)
    return _advance_each(Job.objects.filter(wanted), MOST_AT_ONCE)


def advance_array(array: JobArray) -> int:
    """Start the first jobs of a new array."""
    return _advance_each(array.jobs.all(), MOST_AT_ONCE)


def _find_ready(jobs: QuerySet[Job]) -> list[tuple[int, int | None]]:
    """Return the keys of waiting jobs that nothing open holds back, or that can never start, and their arrays'."""
    of_job = JobDependency.objects.filter(job=OuterRef("pk"))
    members = Job.objects.filter(array=OuterRef("on_array"))
    unmet = of_job.filter(Q(on__state__in=OPEN) | Exists(members.filter(state__in=OPEN)))
    failed = of_job.filter(any_end=False).filter(
        Q(on__state__in=ENDED_BADLY) | Exists(members.filter(state__in=ENDED_BADLY))
    )
    ready = jobs.filter(state=JobState.WAITING).filter(Exists(failed) | ~Exists(unmet))
    return list(ready.order_by("pk").values_list("pk", "array_id").distinct())


def _advance_each(jobs: QuerySet[Job], most: int) -> int:
    """Advance as many; a job that cannot go on holds back the rest of its array, and no other job."""
    held: set[int | None] = set()
    tried = advanced = 0
    for pk, array in _find_ready(jobs):
        if tried == most:
            break
        if array in held:
            continue
        tried += 1
        try:
            is_news = advance(pk)
        except (GpucloudError, DatabaseError):
            logger.exception("A waiting job could not be advanced: job %s", pk)
            is_news = False
        advanced += is_news
        if not is_news and array is not None:
            held.add(array)
    return advanced


@transaction.atomic
def advance(pk: int) -> bool:
    """Start the waiting job if it may start, or end it if it never will; return False if it goes on waiting."""
    job = lock_waiting(pk)
    if job is None:
        return False
    if (end := _find_end(job)) is not None:
        end_job(job, end[0], reason=end[1])
        return True
    if not _is_met(job) or _is_full(job):
        return False
    try:
        with transaction.atomic():
            claim = create_claim(principal=_owner_of(job), spec=spec_of(job))
    except GpucloudError as error:
        if job.reason != error.detail:
            job.change(reason=error.detail)
        return False
    job.change(state=JobState.QUEUED, claim=claim, reason=None)
    return True


def lock_waiting(pk: int) -> Job | None:
    """Return the job under its lock, and its array's before it; None if it does not wait any more."""
    JobArray.objects.select_for_update().filter(jobs=pk).first()
    jobs = Job.objects.select_for_update(of=("self",)).select_related("tenant", "pool", "array", "user")
    return jobs.filter(pk=pk, state=JobState.WAITING).first()


def spec_of(job: Job) -> ClaimSpec:
    """Return the claim that it is to have."""
    return ClaimSpec(tenant=job.tenant, pool=job.pool, **job.claim_spec)


def _owner_of(job: Job) -> Principal:
    """Return who made the job, with the right to claims that was checked then."""
    return Principal(name=job.created_by, user_id=job.user_id, roles={job.tenant_id: Role.MEMBER})


def _find_end(job: Job) -> tuple[JobState, str] | None:
    """Return how the job ends, and why, if it can never start."""
    user = job.user
    if user is not None and not (user.is_active and _may_still(job)):
        return JobState.FAILED, f"{job.created_by} may not create claims in {job.tenant.slug} any more"
    for one in job.dependencies.filter(any_end=False).select_related("on", "on_array"):
        bad = Job.objects.filter(state__in=ENDED_BADLY)
        found = (bad.filter(pk=one.on_id) if one.on_id else bad.filter(array=one.on_array_id)).first()
        if found is not None:
            words = f"{found.name} ({found.uid}), after whose success it was to run, has ended as {found.state}"
            return JobState(found.state), words
    return None


def _may_still(job: Job) -> bool:
    assert job.user is not None
    principal = of_user(job.user)
    return principal.is_operator or job.tenant_id in principal.with_role(Role.MEMBER)


def _is_met(job: Job) -> bool:
    still = Q(on__state__in=OPEN) | Q(on_array__jobs__state__in=OPEN)
    return not job.dependencies.filter(still).exists()


def _is_full(job: Job) -> bool:
    """Return whether its array has as many claims as it may. Under the array's lock."""
    array = job.array
    if array is None or array.at_once is None:
        return False
    return array.jobs.filter(state__in=UNDER_CLAIM).count() >= array.at_once
