"""The page of one claim."""

import uuid
from collections.abc import Iterable
from datetime import datetime
from itertools import pairwise
from typing import Any

from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.http import require_GET

from apps.accounting.services.guarantees import find_missed
from apps.console.claims.claim_forms import ResizeForm
from apps.console.claims.falls import find_fall
from apps.console.claims.forecast_facts import find_forecast
from apps.console.claims.group_facts import find_group_facts
from apps.console.claims.instance_facts import find_instance_facts, room_in_instance
from apps.console.claims.snippets import snippets
from apps.console.claims.suspension_facts import find_suspension_facts
from apps.console.queue.rounds import placed_by
from apps.console.shell.chart_span import span_of
from apps.console.shell.measurements import NOTHING, chart_of_claim, difference, use_of_assignments, with_places
from apps.console.shell.page_access import page, wants_fragment
from apps.nodes.models import GpuHealth
from apps.nodes.models.health import STALE
from apps.quotas.models import AuditEvent
from apps.quotas.principals import Principal
from apps.remote import figures
from apps.scheduling.models import Assignment, Claim, ClaimState
from apps.scheduling.models.choices import OverQuota, Remote
from apps.scheduling.models.claim import PLACED
from apps.scheduling.services.claims.lifecycle import limits
from apps.scheduling.services.claims.suspension_reports import (
    CARRY_REFUSED,
    MOVE_REFUSED,
    RESUME_REFUSED,
    SUSPEND_REFUSED,
)
from apps.scheduling.services.cycles.queue import find_place
from apps.suspension.rotation.places import sharing

# Codes of the reasons that a claim shows after its node refused to suspend, resume or move it.
REFUSALS = (SUSPEND_REFUSED, RESUME_REFUSED, MOVE_REFUSED, CARRY_REFUSED)
GUARANTEED, BEST_EFFORT = "guaranteed", "best-effort"
# What the page lists of a claim only where it is set.
DETAILS = (
    "used_by", "reservation_id", "gpu_model", "priority", "time_limit_seconds", "start_at", "affinity",
    "anti_affinity", "exclusion", "node_selector", "asked_core_limit", "borrowed_core", "memory_limit_mib", "yields_at",
    "preempt_at", "schedule", "suspends_at",
)  # fmt: skip


@require_GET
@page
def claim_detail(request: HttpRequest, principal: Principal, uid: uuid.UUID) -> HttpResponse:
    """Show one claim, or its live fragment."""
    claim = find(principal, uid)
    span = span_of(request)
    shown = claim_context(claim, principal) | {"span": span}
    if wants_fragment(request):
        new_charts = request.GET.get("charts") not in (None, shown["charted"])
        return render(request, "claims/_again.html", {**shown, "new_charts": new_charts})
    server = f"{request.scheme}://{request.get_host()}"
    more = {
        "chart": chart_of_claim(claim, span),
        "forecast": find_forecast(claim),
        "form": resize_form(claim),
        "snippets": snippets(claim, server=server),
    }
    return render(request, "claims/claim.html", {**shown, **more})


@require_GET
@page
def claim_series(request: HttpRequest, principal: Principal, uid: uuid.UUID) -> JsonResponse:
    """Return the data of the claim's charts."""
    return JsonResponse(chart_of_claim(find(principal, uid), span_of(request)))


def find_all(principal: Principal, keys: Iterable[int]) -> list[Claim]:
    """Return the visible claims with these keys, with their GPUs; two queries."""
    return list(with_places(Claim.objects.visible_to(principal)).filter(pk__in=keys))


def find(principal: Principal, uid: uuid.UUID) -> Claim:
    """Return the claim with its GPUs. Raises Http404 if it is missing or a foreign tenant's."""
    rows = with_places(Claim.objects.visible_to(principal)).select_related("pack_profile", "job")
    claim: Claim | None = rows.filter(uid=uid).first()
    if claim is None:
        raise Http404("There is no such claim that you may see.")
    return claim


def claim_context(claim: Claim, principal: Principal) -> dict[str, Any]:
    """Return the context of the live fragment of a claim's page."""
    assignments = list(claim.assignments.all())
    live = [item for item in assignments if item.state != "released"]
    use = use_of_assignments(live)
    return {
        "claim": claim,
        "has_details": not claim.rebalance
        or claim.movable
        or claim.remote != Remote.ALLOW
        or claim.when_over_quota != OverQuota.REFUSE
        or (claim.group and not claim.group_uid)
        or hasattr(claim, "pack_profile")
        or any(getattr(claim, name) for name in DETAILS),
        "assignments": [(item, use.get(item.uid, NOTHING)) for item in (live or assignments)],
        "charted": ",".join(str(item.uid) for item in (live or assignments)),
        "processes": _processes(claim, live),
        "timeline": timeline(claim),
        "observed_generation": min(
            (item.observed_generation for item in live if item.counterpart_id is None), default=0
        ),
        "change": last_change(last_resizes([claim]).get(str(claim.uid)), live),
        "may_change": principal.is_operator or claim.tenant_id in principal.with_role("member"),
        "place": find_place(claim),
        "round": placed_by(claim) if principal.is_operator else None,
        "resizable": not claim.has_fixed_size and (claim.waiting or claim.state in (*PLACED, ClaimState.SUSPENDED)),
        "room": room(claim),
        "missed": find_missed(claim, live),
        "memory_out": [item for item in live if item.memory_out_since],
        "fall": find_fall(claim, live),
        "suspension": find_suspension_facts(claim),
        "group": find_group_facts(claim),
        "remote_use": figures.read(claim.uid) if live and claim.remote != Remote.NEVER else None,
        "instance": find_instance_facts(claim, live),
        "sharers": len(sharing(item.gpu for item in live)) if hasattr(claim, "rotation") else 0,
        "refused": any(reason["code"] in REFUSALS for reason in claim.reasons),
    }


def _processes(claim: Claim, live: list[Assignment]) -> list[dict[str, Any]]:
    """Return the claim's processes on its GPUs, as last reported."""
    reports = GpuHealth.objects.filter(gpu__in=[item.gpu_id for item in live], reported_at__gt=timezone.now() - STALE)
    listed = reports.values_list("processes", flat=True) if live else ()
    return [one for processes in listed for one in processes if one["claim"] == str(claim.uid)]


def timeline(claim: Claim) -> list[dict[str, Any]]:
    """Return the claim's states, oldest first: name, time, seconds after the one before."""
    times = [datetime.fromisoformat(at) for _, at in claim.timeline]
    gaps = [None, *((later - earlier).total_seconds() for earlier, later in pairwise(times))]
    names = [name for name, _ in claim.timeline]
    return [{"name": name, "at": at, "after": gap} for name, at, gap in zip(names, times, gaps, strict=False)]


def last_resizes(claims: Iterable[Claim]) -> dict[str, AuditEvent]:
    """Return the last resize of each claim, by its uid; one query."""
    uids = [str(claim.uid) for claim in claims]
    rows = AuditEvent.objects.filter(object_type="claim", object_id__in=uids, action="claim.resize")
    return {event.object_id: event for event in rows.order_by("object_id", "-pk").distinct("object_id")}


def last_change(event: AuditEvent | None, live: list[Assignment]) -> dict[str, Any] | None:
    """Return the last resize: what, when, and the seconds until it was in force everywhere.

    The seconds are None if it is not in force yet, or if the claim has moved to other GPUs since.
    """
    if event is None:
        return None
    times = [item.in_force_at for item in live if item.in_force_at and item.observed_generation >= item.generation]
    in_force = bool(live) and len(times) == len(live)
    # On GPUs to which it moved later, the time since then does not measure the change.
    there = all(item.created_at <= event.at for item in live)
    seconds = (max(times) - event.at).total_seconds() if in_force and there else None
    return {"what": difference(event), "at": event.at, "in_force": in_force, "seconds": seconds}


def resize_form(claim: Claim, data: Any = None) -> ResizeForm:
    """Return the resize form with the present limits."""
    live = [item for item in claim.assignments.all() if item.state != "released"]
    return ResizeForm(data, initial=limits(claim), gpus=[item.gpu for item in live])


def memory_in_use(claim: Claim) -> int:
    """Return the MiB that its programs use now, on the GPU where they use most."""
    live = [item for item in claim.assignments.all() if item.state != "released"]
    return round(max((use.memory_mib or 0 for use in use_of_assignments(live).values()), default=0))


def room(claim: Claim) -> dict[str, int] | None:
    """Return how far the claim can grow on its GPUs: the least that each has free, plus its own share."""
    live = [item for item in claim.assignments.all() if item.state != "released"]
    if not live:
        return None
    if claim.instance_of is not None:
        return room_in_instance(claim, live[0])
    return {
        "core": min(item.held_core + item.gpu.core_free for item in live),
        "memory_mib": min(item.held_memory_mib + item.gpu.memory_free_mib for item in live),
    }
