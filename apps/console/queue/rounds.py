"""Rounds of the scheduler: the claims of each, the decisions and their reasons."""

import uuid
from datetime import timedelta
from typing import Any

from django.http import Http404, HttpRequest, HttpResponseBase
from django.shortcuts import render
from django.utils.translation import gettext_lazy as _
from django.views.decorators.http import require_GET

from apps.console.shell.export import as_file, facts_of, file_format
from apps.console.shell.lists.columns import column, number
from apps.console.shell.lists.filters import ListFilter, pools
from apps.console.shell.lists.views import ListPage
from apps.console.shell.page_access import page
from apps.nodes.models import Gpu
from apps.quotas.principals import Principal
from apps.scheduling.models import Claim, FleetSnapshot, Round

MOST_SHOWN = 200
# Time between the commit of a placement and its round: a moment on a busy machine, never this long.
WRITTEN_WITHIN = timedelta(minutes=1)
DECISIONS = ["claim", "gpus", "reasons"]


class RoundFilter(ListFilter):
    """The filters of rounds."""

    pool = pools()


class RoundList(ListPage):
    """The rounds, newest first. Operators only."""

    model, filters, template_name = Round, RoundFilter, "rounds/list.html"
    title, subtitle = (
        _("Scheduling cycles"),
        _("Decisions of the scheduler with their reasons; each cycle can be replayed"),
    )
    operators_only = True
    # Millions of rows: only the order that an index serves is offered.
    columns = [
        column(_("Scheduling cycle"), "round", "pk", word="round"),
        column(_("Pool")),
        number(_("When")),
        number(_("Asked")),
        number(_("Placed")),
        number(_("Duration"), css="wide num"),
    ]
    file = ("rounds", ["round", "pool", "at", "considered", "placed", "duration_us"])

    def with_details(self, rows: Any) -> Any:
        """Add the pool, without the decisions."""
        return rows.select_related("pool").defer("steps")

    def facts(self, row: Any) -> Any:
        """Return the round with its pool's name."""
        return facts_of(row, self.file[1], round=row.pk, pool=row.pool.name)


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
