"""The forecast of one claim as people read it: the band of the last day, and how often it was wrong."""

from datetime import datetime
from typing import Any

import numpy as np
from django.utils import timezone

from apps.forecasts import history
from apps.forecasts.models import ClaimForecast
from apps.forecasts.quantiles import DAY, Series
from apps.forecasts.services import FRESH
from apps.nodes.services.telemetry.levels import floor
from apps.scheduling.models import Claim


def band_of(claim: Claim, *, now: datetime | None = None) -> dict[str, Any]:
    """Return the claim's forecast and the windows of the last day that have a number; four queries."""
    now = now or timezone.now()
    end = floor(now, history.WINDOW) + history.WINDOW
    row = ClaimForecast.objects.filter(claim=claim).first()
    # As for the rebalancer: an old forecast, of a released claim for example, says nothing of the next minutes.
    present = row if row is not None and row.upper is not None and row.at and row.at >= now - FRESH else None
    return {
        "claim": claim.uid,
        "source": "none" if present is None else "tenant" if present.of_tenant else "claim",
        "at": present.at if present is not None else None,
        "days": round(row.days, 1) if row is not None else 0.0,
        "risk_percent": row.risk_percent if row is not None else None,
        "expected_percent": present.expected if present is not None else None,
        "upper_percent": present.upper if present is not None else None,
        "judged": row.judged if row is not None else 0,
        "wrong_percent": row.wrong_percent if row is not None else None,
        "windows": _windows(claim, end),
    }


def _windows(claim: Claim, end: datetime) -> list[dict[str, Any]]:
    names = ("used", "expected", "upper")
    series = [history.read_series([claim.pk], end=end, days=1, name=name).get(claim.pk) for name in names]
    if series[0] is None:
        return []
    lines = [_last(one) for one in series]
    first = end - len(lines[0]) * history.WINDOW
    rows = zip(*lines, strict=True)
    return [
        {
            "at": first + number * history.WINDOW,
            "used_percent": used,
            "expected_percent": expected,
            "upper_percent": upper,
        }
        for number, (used, expected, upper) in enumerate(rows)
        if used is not None or upper is not None
    ]


def _last(series: Series | None) -> list[float | None]:
    known = np.full(DAY, np.nan) if series is None else series[-DAY:]
    return [None if np.isnan(value) else round(float(value), 1) for value in known]
