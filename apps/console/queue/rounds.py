"""Rounds of the scheduler: the claims of each, the decisions and their reasons."""

import uuid
from datetime import timedelta
from typing import Any

from django import forms
from django.http import Http404, HttpRequest, HttpResponseBase
from django.shortcuts import render
from django.utils.translation import gettext_lazy as _
from django.views.decorators.http import require_GET

from apps.console.queue.queue import PoolForm
from apps.console.shell.export import as_file, facts_of, file_format
from apps.console.shell.page_access import page, wants_fragment
from apps.nodes.models import Gpu
from apps.quotas.principals import Principal
from apps.scheduling.models import Claim, FleetSnapshot, Round
from gpucloud.web.keyset import keyset_page

MOST_SHOWN = 200
# Time between the commit of a placement and its round: a moment on a busy machine, never this long.
WRITTEN_WITHIN = timedelta(minutes=1)
COLUMNS = ["round", "pool", "at", "considered", "placed", "duration_us"]
DECISIONS = ["claim", "gpus", "reasons"]


class RoundsForm(PoolForm):
    """The choice of a pool; all pools by default."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        field = self.fields["pool"]
        assert isinstance(field, forms.ModelChoiceField)
        field.empty_label = _("All pools")


@require_GET
@page
def round_list(request: HttpRequest, principal: Principal) -> HttpResponseBase:
    """List the rounds, newest first."""
    principal.require_operator()
    form = RoundsForm(request.GET)
    rows = Round.objects.select_related("pool").defer("steps")
    if form.is_valid() and form.cleaned_data["pool"]:
        rows = rows.filter(pool=form.cleaned_data["pool"])
    if file := file_format(request):
        found = rows.order_by("-pk").iterator()
        return as_file(
            file, "rounds", COLUMNS, (facts_of(row, COLUMNS, round=row.pk, pool=row.pool.name) for row in found)
        )
    part = keyset_page(rows, request.GET)
    shown = {"form": form, "part": part, "rounds": part.rows}
    return render(request, "rounds/_rows.html" if wants_fragment(request) else "rounds/list.html", shown)


@require_GET
@page
def round_detail(request: HttpRequest, principal: Principal, pk: int) -> HttpResponseBase:
    """Show the decisions of one round, in the order in which its claims were decided."""
    principal.require_operator()
    found = Round.objects.select_related("pool").filter(pk=pk).first()
    if found is None:
        raise Http404("There is no such round, or no longer: old ones are dropped.")
    decisions = found.decisions
    if file := file_format(request):
        rows = ({"gpus": None, "reasons": None, **one} for one in decisions)
        return as_file(file, f"round-{pk}", DECISIONS, rows)
    shown = {
        "round": found,
        "decisions": _with_objects(decisions[:MOST_SHOWN]),
        "left_out": len(decisions) - MOST_SHOWN,
    }
    return render(request, "rounds/round.html", shown)


def placed_by(claim: Claim) -> int | None:
    """Return the number of the round that placed the claim; None if there is none, or it was dropped.

    A round is written right after its placements, and a snapshot with the first round that begins with it: few rounds
    of few snapshots are read, whatever the number of stored ones.
    """
    if claim.assigned_at is None:
        return None
    end = claim.assigned_at + WRITTEN_WITHIN
    bases = FleetSnapshot.objects.filter(pool=claim.pool_id, at__lte=end).order_by("-at").values_list("pk", flat=True)
    near = Round.objects.filter(base__in=list(bases[:2]), at__gte=claim.assigned_at, at__lte=end)
    asked = near.filter(steps__contains=[{"claim": str(claim.uid)}]).order_by("pk")
    return asked.values_list("pk", flat=True).first()


def _with_objects(decisions: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the decisions with the claims and GPUs that still exist."""
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
