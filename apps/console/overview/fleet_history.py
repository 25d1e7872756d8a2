"""The fleet's allocation and use over some hours, by the rolled-up minutes."""

from datetime import timedelta
from typing import Any, Final

from django.http import HttpRequest, JsonResponse
from django.utils import timezone
from django.views.decorators.http import require_GET

from apps.console.shell.page_access import page
from apps.nodes.services.telemetry import fleet
from apps.quotas.principals import Principal

# Hours of a chart, and the minutes that one point averages.
STEPS: Final = {1: 1, 6: 5, 24: 15}


def hours_of(request: HttpRequest) -> int:
    """Return the hours that the URL asks for; one hour for any other value."""
    text = request.GET.get("hours", "")
    return int(text) if text.isdecimal() and len(text) < 3 and int(text) in STEPS else 1


def history(hours: int) -> dict[str, Any]:
    """Return the data of the fleet's charts."""
    now, step = timezone.now(), timedelta(minutes=STEPS[hours])
    window = timedelta(hours=hours)
    series = {"key": "fleet", **fleet.history(begin=now - window, step=step)}
    shown = {"now": now.timestamp(), "window_seconds": window.total_seconds(), "step_seconds": step.total_seconds()}
    return {**shown, "series": [series], "marks": []}


@require_GET
@page
def fleet_series(request: HttpRequest, principal: Principal) -> JsonResponse:
    """Return the data of the fleet's charts again."""
    principal.require_operator()
    return JsonResponse(history(hours_of(request)))
