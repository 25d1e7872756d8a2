"""The page of one GPU: its health, its assignments with their use, new limits, and cordon. Operators only."""

import uuid
from collections.abc import Iterable
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils.translation import gettext
from django.views.decorators.http import require_GET, require_POST

from apps.console.claims.changes import resize_or_note
from apps.console.claims.claim_forms import ResizeForm
from apps.console.claims.claims import find_all, last_change, last_resizes, room
from apps.console.claims.falls import find_falls
from apps.console.nodes.mig import mig_of
from apps.console.shell.bars import bars_of
from apps.console.shell.chart_span import span_of
from apps.console.shell.measurements import chart_of_shares, use_of_assignments, use_of_gpus
from apps.console.shell.page_access import page, wants_fragment
from apps.nodes.models import Gpu
from apps.nodes.services.gpus import cordon_gpu
from apps.quotas.principals import Principal
from apps.scheduling.models import Assignment, AssignmentState
from apps.scheduling.services.claims.lifecycle import limits
from apps.scheduling.services.previews.gpu_cordons import effects_of_cordon
from apps.suspension.rotation.places import sharing
from gpucloud.errors import GpucloudError


@require_GET
@page
def gpu_detail(request: HttpRequest, principal: Principal, uuid: str) -> HttpResponse:
    """Show the page, or its live fragment."""
    gpu = _find(principal, uuid)
    live = _shares(gpu)
    bars = bars_of(gpu, assignments=live, use=use_of_gpus([gpu]), shares=use_of_assignments(live))
    shown: dict[str, Any] = {"row": bars, "processes": _processes(gpu, live), "rotation": sharing([gpu])}
    shown |= {"mig": mig_of(gpu, live), "falls": find_falls(gpu, live)}
    if wants_fragment(request):
        return render(request, "gpus/_live.html", shown)
    span = span_of(request)
    more = {"rows": _rows(principal, live), "effects": effects_of_cordon(gpu), "span": span}
    return render(request, "gpus/gpu.html", shown | more | {"chart": chart_of_shares(gpu, live, span)})


@require_GET
@page
def gpu_series(request: HttpRequest, principal: Principal, uuid: str) -> JsonResponse:
    """Return the data of the page's charts."""
    gpu = _find(principal, uuid)
    return JsonResponse(chart_of_shares(gpu, _shares(gpu), span_of(request)))


@require_POST
@page
def cordon(request: HttpRequest, principal: Principal, uuid: str) -> HttpResponse:
    """Cordon the GPU, or uncordon it."""
    cordoned = request.POST.get("cordoned") == "yes"
    gpu = cordon_gpu(principal=principal, gpu=_find(principal, uuid), cordoned=cordoned)
    if cordoned:
        text = gettext("GPU {0} of {1} takes no new claims; those on it stay.")
    else:
        text = gettext("GPU {0} of {1} takes new claims again.")
    messages.success(request, text.format(gpu.index, gpu.node.name))
    return redirect("gpu", uuid=uuid)


@require_POST
@page
def reallocate(request: HttpRequest, principal: Principal, uuid: str, claim: uuid.UUID) -> HttpResponse:
    """Set new limits for the claim of an assignment, on all its GPUs. A refusal changes nothing."""
    gpu = _find(principal, uuid)
    item = get_object_or_404(_shares(gpu), claim__uid=claim)
    form, noted = _form(item, request.POST), dict[str, Any]()
    if form.is_valid():
        try:
            noted = resize_or_note(request, principal, item.claim, form)
        except GpucloudError as error:
            form.refuse(error)
    refused = bool(noted) or not form.is_valid()
    if not wants_fragment(request) and not refused:
        return redirect("gpu", uuid=uuid)
    item = get_object_or_404(_shares(gpu), claim__uid=claim)
    one = _rows(principal, [item])[0]
    shown = {"one": one | {"form": form} if refused else one, "gpu": gpu, "answered": not refused, **noted}
    template = "gpus/_share.html" if wants_fragment(request) else "gpus/share.html"
    return render(request, template, shown, status=422 if form.errors else 200)


def _find(principal: Principal, uuid: str) -> Gpu:
    principal.require_operator()
    return get_object_or_404(
        Gpu.objects.select_related("node__pool", "health").prefetch_related("conditions"), uuid=uuid
    )


def _shares(gpu: Gpu) -> Any:
    live = Assignment.objects.filter(gpu=gpu).live()
    return live.select_related("claim__tenant", "claim__pool", "gpu__node").order_by("pk")


def _processes(gpu: Gpu, live: Iterable[Assignment]) -> list[dict[str, Any]]:
    """Return the GPU's processes with the names of their claims."""
    if not hasattr(gpu, "health"):
        return []
    names = {str(item.claim.uid): str(item.claim) for item in live}
    return [one | {"name": names.get(one["claim"], one["claim"])} for one in gpu.health.processes]


def _rows(principal: Principal, items: Iterable[Assignment]) -> list[dict[str, Any]]:
    """Return the context of each assignment; as many queries for fifty as for one."""
    claims = {claim.pk: claim for claim in find_all(principal, [item.claim_id for item in items])}
    resizes = last_resizes(claims.values())
    rows = []
    for item in items:
        claim = claims[item.claim_id]
        live = [one for one in claim.assignments.all() if one.state != AssignmentState.RELEASED]
        rows.append(
            {
                "item": item,
                "claim": claim,
                "form": _form(item),
                "room": room(claim),
                "others": len(live) - 1,
                "change": last_change(resizes.get(str(claim.uid)), live),
            }
        )
    return rows


def _form(item: Assignment, data: Any = None) -> ResizeForm:
    # The page has several forms: each field has an id of its own for its label.
    return ResizeForm(data, initial=limits(item.claim), gpus=[item.gpu], auto_id=f"{item.claim.uid}-%s")
