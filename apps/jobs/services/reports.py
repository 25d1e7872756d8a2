"""Reports of agents about the runs of their nodes, and the output of these."""

import logging
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from django.db import transaction
from django.db.models import Q, Sum
from django.utils import timezone
from msgspec import UNSET

from agent import wire
from apps.jobs.hints import job_changed_on_commit
from apps.jobs.models import Job, JobOutput, JobState
from apps.jobs.services import notebooks, waiting
from apps.jobs.services.lifecycle import begin_again, end_job, end_run
from apps.nodes.models import Node
from apps.scheduling.models import Assignment, ClaimState
from apps.scheduling.models.claim import WAITING

logger = logging.getLogger(__name__)

PREEMPTED = "its claim was preempted"


def observe(node: Node, states: Sequence[wire.JobState]) -> None:
    """Record what runs on the node, and what has ended."""
    for state in states:
        with transaction.atomic():
            job = _lock_run(node, state.uid)
            if job is not None:
                _take(job, node, state)
        if job is not None and not job.is_open:
            waiting.advance_after(job)


def _lock_run(node: Node, run_uid: str) -> Job | None:
    """Return the locked job of a run on this node; None if it has none, or has another one by now."""
    there = Assignment.objects.filter(gpu__node=node).values("claim")
    jobs = Job.objects.open().select_for_update(of=("self",)).select_related("tenant", "pool", "claim")
    return jobs.filter(run_uid=run_uid, claim__in=there).first()


def _take(job: Job, node: Node, state: wire.JobState) -> None:
    if state.state == "refused":
        end_job(job, JobState.FAILED, reason=state.reason or "the node refused it")
    elif state.state in ("running", "ended"):
        _note_start(job, node, state)
        if state.image is not UNSET and state.image != job.image_digest:
            job.change(image_digest=state.image)
    if state.state == "running" and state.idle_seconds is not UNSET:
        notebooks.note_idle(job, state.idle_seconds)
    if state.state == "ended" and job.run_result is None:
        job.change(
            run_result={"exit_code": state.exit_code, "reason": state.reason, "output_bytes": state.output_bytes},
            dropped_bytes=state.dropped_bytes,
        )
    _end_if_complete(job)


def _note_start(job: Job, node: Node, state: wire.JobState) -> None:
    """Record that the run began, once."""
    if job.run_started_at is None:
        # By the node's clock; a wrong one may not put the start into the future.
        begun = datetime.fromtimestamp(state.started_at or 0, tz=UTC) if state.started_at else timezone.now()
        begun = min(begun, timezone.now())
        job.change(state=JobState.RUNNING, run_started_at=begun, run_node=node.name, started_at=job.started_at or begun)


def _end_if_complete(job: Job) -> None:
    """End the run once its whole output is here."""
    result = job.run_result
    if job.is_open and result is not None and job.output_bytes >= result["output_bytes"]:
        end_run(job, exit_code=result["exit_code"], reason=result["reason"])


def take_output(node: Node, frame: wire.Output) -> int | None:
    """Store a piece of output; return how much of the run's output is stored, or None if nobody wants it.

    A piece that was sent twice is stored once; a piece after a gap is not stored, and the agent goes back.
    """
    with transaction.atomic():
        job = _lock_run(node, frame.uid)
        if job is None:
            return None
        _store(job, frame)
    if not job.is_open:
        waiting.advance_after(job)
    return job.output_bytes


def _store(job: Job, frame: wire.Output) -> None:
    """Store what is new of the piece."""
    known = job.output_bytes - frame.offset
    if 0 <= known < len(frame.data):
        data = frame.data[known:]
        JobOutput.objects.create(job=job, run=job.runs, offset=job.output_bytes, data=data)
        job.change(output_bytes=job.output_bytes + len(data), stored_bytes=job.stored_bytes + len(data))
        job_changed_on_commit(job.uid)
        _end_if_complete(job)


def follow() -> int:
    """End or repeat the runs whose claim is not there any more, and start what waits no longer; return how many."""
    gone = Q(claim__state__in=(ClaimState.RELEASED, ClaimState.FAILED))
    preempted = Q(claim__state__in=WAITING, run_started_at__isnull=False)
    pks = list(Job.objects.open().filter(gone | preempted).values_list("pk", flat=True))
    return sum(_follow_one(pk) for pk in pks) + waiting.advance_all()


@transaction.atomic
def _follow_one(pk: int) -> bool:
    job = Job.objects.select_for_update(of=("self",)).select_related("tenant", "pool", "claim").get(pk=pk)
    claim = job.claim
    if claim is None or not job.is_open:
        return False
    why = "; ".join(reason["detail"] for reason in claim.reasons) or claim.state
    if claim.state == ClaimState.FAILED:
        end_job(job, JobState.FAILED, reason=f"its claim failed: {why}")
    elif claim.state == ClaimState.RELEASED or job.run_result is not None:
        _end_without_claim(job, why)
    elif claim.state in WAITING and job.run_started_at is not None:
        begin_again(job, reason=PREEMPTED, counts=False)
    else:
        return False
    return True


def _end_without_claim(job: Job, why: str) -> None:
    """End a job whose claim is over: as it ended by itself, if that is known, else as stopped."""
    result = job.run_result
    if result is None:
        end_job(job, JobState.STOPPED, reason=f"its claim has ended: {why}")
        return
    lost = max(0, result["output_bytes"] - job.output_bytes)
    job.change(dropped_bytes=job.dropped_bytes + lost)
    end_run(job, exit_code=result["exit_code"], reason=result["reason"])


def forget_output(*, days: int, mib: int) -> int:
    """Delete the output of jobs that ended so many days ago, and of each tenant's oldest ones above so many MiB.

    Returns the number of jobs.
    """
    ended = Job.objects.filter(stored_bytes__gt=0, ended_at__isnull=False)
    found = set(ended.filter(ended_at__lt=timezone.now() - timedelta(days=days)).values_list("pk", flat=True))
    sums = Job.objects.filter(stored_bytes__gt=0).values("tenant").annotate(held=Sum("stored_bytes"))
    for tenant, held in sums.filter(held__gt=mib << 20).order_by().values_list("tenant", "held"):
        left = held - (mib << 20)
        oldest = ended.filter(tenant=tenant).order_by("ended_at").values_list("pk", "stored_bytes")
        for pk, size in oldest.iterator():
            if left <= 0:
                break
            found.add(pk)
            left -= size
    with transaction.atomic():
        JobOutput.objects.filter(job__in=found).delete()
        Job.objects.filter(pk__in=found).update(stored_bytes=0)
    return len(found)
