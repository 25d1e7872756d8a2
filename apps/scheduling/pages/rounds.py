"""Rounds of the scheduler: what was asked, what was answered, and why."""

import uuid
from typing import Any

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET

from apps.nodes.models import Gpu
from apps.quotas.principals import Principal
from apps.scheduling.models import Claim, Round
from apps.scheduling.pages.access import page, wants_fragment
from apps.scheduling.pages.queue import PoolForm
from gpucloud.web.newest import part_of

MOST_SHOWN = 200


@require_GET
@page
def round_list(request: HttpRequest, principal: Principal) -> HttpResponse:
    """The last rounds first."""
    principal.require_operator()
    form = PoolForm(request.GET)
    rows = Round.objects.select_related("pool").defer("steps")
    if form.is_valid() and form.cleaned_data["pool"]:
        rows = rows.filter(pool=form.cleaned_data["pool"])
    part = part_of(rows, request.GET)
    shown = {"form": form, "part": part, "rounds": part.rows}
    return render(request, "rounds/_rows.html" if wants_fragment(request) else "rounds/list.html", shown)


@require_GET
@page
def round_detail(request: HttpRequest, principal: Principal, pk: int) -> HttpResponse:
    """What one round decided of each claim, in the order in which they were asked."""
    principal.require_operator()
    found = Round.objects.select_related("pool").filter(pk=pk).first()
    if found is None:
        raise Http404("There is no such round, or no longer: old ones are dropped.")
    decisions = found.decisions
    shown = {"round": found, "decisions": _named(decisions[:MOST_SHOWN]), "left_out": len(decisions) - MOST_SHOWN}
    return render(request, "rounds/round.html", shown)


def _named(decisions: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """With the claims and GPUs that are still known."""
    uids = [uuid.UUID(one["claim"]) for one in decisions]
    claims = {str(claim.uid): claim for claim in Claim.objects.filter(uid__in=uids).select_related("tenant")}
    wanted = {gpu for one in decisions for gpu in one.get("gpus") or ()}
    gpus = {gpu.uuid: gpu for gpu in Gpu.objects.filter(uuid__in=wanted).select_related("node")}
    return [
        {
            **one,
            "found": claims.get(one["claim"]),
            "places": [gpus.get(uuid_, uuid_) for uuid_ in one.get("gpus") or ()],
        }
        for one in decisions
    ]
