"""The page of an array of jobs: the state of each at a glance; and its end."""

import uuid
from collections.abc import Iterator
from typing import Any

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect, render
from django.utils.translation import gettext
from django.views.decorators.http import require_GET, require_POST

from apps.console.jobs.job_list import badge_of
from apps.console.shell.page_access import page, wants_fragment
from apps.jobs.models import JobArray
from apps.jobs.services.arrays import count_states, state_of, stop_array
from apps.quotas.principals import Principal


def find(principal: Principal, uid: uuid.UUID) -> JobArray:
    """Return the array. Raises Http404."""
    array = JobArray.objects.visible_to(principal).select_related("tenant", "pool").filter(uid=uid).first()
    if array is None:
        raise Http404
    return array


@require_GET
@page
def job_array(request: HttpRequest, principal: Principal, uid: uuid.UUID) -> HttpResponseBase:
    """Show an array."""
    array = find(principal, uid)
    counts = count_states(array)
    is_open = state_of(counts) == "running"
    held = array.jobs.filter(state="waiting", reason__isnull=False).first()
    shown = {
        "array": array,
        "counts": [({"state": state}, count) for state, count in counts.items()],
        "is_open": is_open,
        "reason": held and held.reason,
        "cells": list(cells_of(array)),
        "may_stop": is_open and (principal.is_operator or array.tenant_id in principal.with_role("member")),
    }
    return render(request, "jobs/_array.html" if wants_fragment(request) else "jobs/array.html", shown)


def cells_of(array: JobArray) -> Iterator[dict[str, Any]]:
    """Yield one cell for each job, by index."""
    for uid, index, state, code in array.jobs.order_by("array_index").values_list(
        "uid", "array_index", "state", "exit_code"
    ):
        shown = badge_of(state)
        title = f"{index}: {shown.label}" + ("" if code in (None, 0) else f", {gettext('Exit code')} {code}")
        yield {"uid": uid, "index": index, "tone": shown.tone, "title": title}


@require_POST
@page
def job_array_stop(request: HttpRequest, principal: Principal, uid: uuid.UUID) -> HttpResponse:
    """Stop all jobs of the array."""
    array = stop_array(principal=principal, array=find(principal, uid))
    messages.success(request, gettext("{0} is being stopped.").format(array))
    return redirect("job-array", uid=array.uid)
