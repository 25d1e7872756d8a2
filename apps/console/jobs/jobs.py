"""The page of one job, with its output; and its end."""

import shlex
import uuid
from datetime import timedelta
from typing import Any

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase, StreamingHttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.utils.translation import gettext
from django.views.decorators.http import require_GET, require_POST

from apps.console.shell.page_access import page, wants_fragment
from apps.jobs.models import Job, JobKind, JobState
from apps.jobs.services.lifecycle import stop_job
from apps.jobs.services.output import read_output, stream_output
from apps.quotas.principals import Principal

# What the page shows of the end of a run's output; the file has everything.
SHOWN_BYTES = 64 * 1024


def find(principal: Principal, uid: uuid.UUID) -> Job:
    """Return the job. Raises Http404."""
    job = (
        Job.objects.visible_to(principal)
        .select_related("tenant", "pool", "claim", "array", "files")
        .filter(uid=uid)
        .first()
    )
    if job is None:
        raise Http404
    return job


@require_GET
@page
def job_detail(request: HttpRequest, principal: Principal, uid: uuid.UUID) -> HttpResponseBase:
    """Show a job, and the end of its output."""
    job = find(principal, uid)
    may_act = job.is_open and _may_act(principal, job)
    begin = max(0, job.output_bytes - SHOWN_BYTES)
    shown = {
        "job": job,
        "command": shlex.join(job.command),
        "names": sorted(job.environment),
        "dependencies": job.dependencies.select_related("on", "on_array"),
        "output": read_output(job, offset=begin, most=SHOWN_BYTES),
        "may_stop": may_act and job.stop_requested_at is None,
        "may_open_terminals": may_act,
        **_of_notebook(job, may_act=may_act),
    }
    return render(request, "jobs/_live.html" if wants_fragment(request) else "jobs/job.html", shown)


def _of_notebook(job: Job, *, may_act: bool) -> dict[str, Any]:
    """Return what the page of a notebook has beside that of a job."""
    if job.kind != JobKind.NOTEBOOK:
        return {}
    runs = job.state == JobState.RUNNING and job.stop_requested_at is None and may_act
    ends_at = None
    if runs and job.idle_minutes is not None and job.idle_since is not None:
        ends_at = job.idle_since + timedelta(minutes=job.idle_minutes)
    # Told from the half of its time on.
    is_near = ends_at is not None and ends_at - timezone.now() < timedelta(minutes=(job.idle_minutes or 0) / 2)
    limit = 60 * (job.idle_minutes or 0)
    return {"is_notebook": True, "may_open": runs, "idle_limit": limit, "idle_ends_at": ends_at if is_near else None}


def _may_act(principal: Principal, job: Job) -> bool:
    return principal.is_operator or job.tenant_id in principal.with_role("member")


@require_GET
@page
def job_output(request: HttpRequest, principal: Principal, uid: uuid.UUID) -> HttpResponseBase:
    """Return the whole output of the last run as a file."""
    job = find(principal, uid)
    headers = {"Content-Disposition": f'attachment; filename="job-{job.uid}.txt"', "X-Content-Type-Options": "nosniff"}
    return StreamingHttpResponse(stream_output(job), content_type="text/plain; charset=utf-8", headers=headers)


@require_POST
@page
def job_stop(request: HttpRequest, principal: Principal, uid: uuid.UUID) -> HttpResponse:
    """Stop the job."""
    job = stop_job(principal=principal, job=find(principal, uid))
    said = gettext("{0} is being stopped.") if job.is_open else gettext("{0} has ended.")
    messages.success(request, said.format(job))
    return redirect("job", uid=job.uid)
