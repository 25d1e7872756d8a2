"""The forecast of a claim on its page: the band of the last day as shapes of an SVG, and its figures."""

from collections.abc import Sequence
from typing import Any

from apps.forecasts.models import ClaimForecast
from apps.forecasts.provided import band_of
from apps.scheduling.models import Claim

# Windows of five minutes.
DAY = 288
# The view box: a unit for each window of a day, and for each percent.
WIDTH, HEIGHT = DAY, 100


def find_forecast(claim: Claim) -> dict[str, Any] | None:
    """Return the forecast with `used` and `band`, points of a polyline and of a polygon; None without a forecast."""
    if not ClaimForecast.objects.filter(claim=claim, upper__isnull=False).exists():
        return None
    found = band_of(claim)
    windows = found["windows"]
    if found["source"] == "none" or not windows:
        return None
    last = windows[-1]["at"]
    placed = [(DAY - 1 - int((last - one["at"]).total_seconds()) // 300, one) for one in windows]
    lower = [(at, one["expected_percent"]) for at, one in placed if one["upper_percent"] is not None]
    upper = [(at, one["upper_percent"]) for at, one in placed if one["upper_percent"] is not None]
    used = [(at, one["used_percent"]) for at, one in placed if one["used_percent"] is not None]
    return {**found, "band": _points([*upper, *reversed(lower)]), "used": _points(used)}


def _points(pairs: Sequence[tuple[int, float]]) -> str:
    """Return points of an SVG; its y axis points down."""
    return " ".join(f"{at},{HEIGHT - value:.1f}" for at, value in pairs)
