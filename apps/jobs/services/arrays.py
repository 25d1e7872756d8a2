"""The states of arrays, and their end."""

from django.db import transaction
from django.db.models import Count, Q, QuerySet

from apps.jobs.models import OPEN, JobArray, JobState
from apps.jobs.services.lifecycle import end_job, stop_job
from apps.quotas.principals import Principal
from apps.quotas.services import audit
from gpucloud.api import etags

ENDED = ("succeeded", "failed", "stopped")


def with_counts(arrays: "QuerySet[JobArray]") -> "QuerySet[JobArray]":
    """Add the number of jobs in each state."""
    counts = {f"jobs_{state.value}": Count("jobs", filter=Q(jobs__state=state)) for state in JobState}
    return arrays.annotate(**counts)


def count_states(array: JobArray) -> dict[str, int]:
    """Return the number of jobs in each state that some have."""
    if not hasattr(array, "jobs_waiting"):
        rows = array.jobs.order_by().values_list("state").annotate(Count("pk"))
        return dict(sorted(rows, key=lambda row: JobState.values.index(row[0])))
    found = {state: getattr(array, f"jobs_{state}") for state in JobState.values}
    return {state: count for state, count in found.items() if count}


def state_of(counts: dict[str, int]) -> str:
    """Return the state of all together: `running` while one is open."""
    if any(state in counts for state in OPEN):
        return "running"
    return next((state for state in ("failed", "stopped") if state in counts), "succeeded")


def stop_array(*, principal: Principal, array: JobArray, versions: etags.Versions = None) -> JobArray:
    """Stop every job of the array that has not ended: first those that wait, so that none takes a free place."""
    principal.require_role(array.tenant, "member")
    with transaction.atomic():
        locked = etags.lock(array, versions, "tenant")
        waiting = locked.jobs.filter(state=JobState.WAITING).order_by("pk")
        if locked.jobs.open().exists():
            audit.record(principal, "job-array.stop", locked, before=count_states(locked))
        for job in waiting.select_for_update(of=("self",)).select_related("tenant", "pool"):
            end_job(job, JobState.STOPPED, reason=f"stopped by {principal.name}")
    for job in array.jobs.open():
        stop_job(principal=principal, job=job)
    return locked
