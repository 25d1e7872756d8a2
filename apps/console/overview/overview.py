"""The overview: problems, and how full the fleet is."""

from typing import Any

from django.db.models import Count, ExpressionWrapper, F, FloatField, Q, Sum
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from apps.console.overview.attention import notices
from apps.console.overview.capacity import room_of
from apps.console.overview.first_steps import first_steps
from apps.console.overview.fleet_history import STEPS, history, hours_of
from apps.console.overview.fleet_map import read_fleet_map
from apps.console.overview.strips import strips_of
from apps.console.shell.fragment_cache import share_fragment
from apps.console.shell.kept_sums import keep_sums
from apps.console.shell.measurements import with_places, with_use
from apps.console.shell.page_access import page, wants_fragment
from apps.quotas.models import AuditEvent, Pool, ResourceQuota
from apps.quotas.principals import Principal
from apps.scheduling.models import Claim, ClaimState
from apps.scheduling.models.claim import IN_QUEUE, ClaimQuerySet

CLAIMS = 10
QUOTAS = 8
EVENTS = 8


@page
@share_fragment
def overview(request: HttpRequest, principal: Principal) -> HttpResponse:
    """Show the page, or its live fragment."""
    shown = _context(principal) | {"hours": hours_of(request), "windows": list(STEPS)}
    if wants_fragment(request):
        return render(request, "overview/_live.html", shown)
    shown["runs_jobs"] = principal.may_claim and Pool.objects.filter(jobs=True).exists()
    if principal.is_operator:
        shown["chart"] = history(shown["hours"])
    return render(request, "overview/overview.html", shown)


def _context(principal: Principal) -> dict[str, Any]:
    claims = Claim.objects.visible_to(principal)
    fleet = read_fleet_map(principal) if principal.is_operator else None
    return {
        "steps": first_steps(principal),
        "notices": notices(principal, fleet),
        "fleet": fleet,
        "strips": strips_of(fleet) if fleet else [],
        "room": room_of(fleet.free) if fleet else [],
        # An operator's are all claims of the installation.
        "counts": keep_sums("claims", lambda: _count(claims)) if principal.is_operator else _count(claims),
        "claims": with_use(with_places(claims.live())[:CLAIMS]),
        "quotas": _fullest_quotas(principal),
        "events": AuditEvent.objects.visible_to(principal).select_related("tenant").order_by("-pk")[:EVENTS],
    }


def _count(claims: ClaimQuerySet) -> dict[str, int]:
    return claims.live().aggregate(
        live=Count("pk"),
        active=Count("pk", filter=Q(state=ClaimState.ACTIVE)),
        queued=Count("pk", filter=IN_QUEUE),
        core_percent=Sum("charged_core_percent", default=0),
        memory_mib=Sum("charged_memory_mib", default=0),
    )


def _fullest_quotas(principal: Principal) -> Any:
    """Return the fullest quotas first; unlimited ones are left out."""
    percent = ExpressionWrapper(100.0 * F("used") / F("hard"), output_field=FloatField())
    limited = ResourceQuota.objects.visible_to(principal).filter(hard__gt=0).select_related("tenant", "pool")
    return limited.annotate(percent=percent).order_by("-percent", "pk")[:QUOTAS]
