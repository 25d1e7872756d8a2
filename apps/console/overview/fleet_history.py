"""How full the fleet was, over some hours: what was leased and what was used, by the minutes that are rolled up."""

from datetime import timedelta
from typing import Any, Final

from django.http import HttpRequest, JsonResponse
from django.utils import timezone
from django.views.decorators.http import require_GET

from apps.console.shell.page_access import page
from apps.nodes.services.telemetry import fleet
from apps.quotas.principals import Principal

# Hours of a chart, and minutes that one point is the mean of.
STEPS: Final = {1: 1, 6: 5, 24: 15}


def hours_of(request: HttpRequest) -> int:
    """How far back the URL asks for; an hour unless it says one of the others."""
    text = request.GET.get("hours", "")
    return int(text) if text.isdecimal() and len(text) < 3 and int(text) in STEPS else 1


def history(hours: int) -> dict[str, Any]:
    """What the fleet's charts show."""
    now, step = timezone.now(), timedelta(minutes=STEPS[hours])
    window = timedelta(hours=hours)
    series = {"key": "fleet", **fleet.history(begin=now - window, step=step)}
    shown = {"now": now.timestamp(), "window_seconds": window.total_seconds(), "step_seconds": step.total_seconds()}
    return {**shown, "series": [series], "marks": []}


@require_GET
@page
def fleet_series(request: HttpRequest, principal: Principal) -> JsonResponse:
    """What the fleet's charts show, again."""
    principal.require_operator()
    return JsonResponse(history(hours_of(request)))
