"""The policy `forecast`: a claim keeps what it will need in the next window but for the pool's risk, the rest is lent.

The forecast itself comes with the observation (`apps.forecasts`). A claim without one, because less than three days of
its use are known, is treated as by `percentile`, and the explanation says so. The request, the limit and the memory of
a claim with a forecast stay as they are.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

from apps.rebalancing.percentile import LEAST_POINTS, percentile
from apps.rebalancing.values import Bounds, Change, Forecast, Observation, giving_back, lending

TOO_YOUNG = "Less than three days of its use are known, so that it is treated as by `percentile`."


def forecast(observations: Sequence[Observation], bounds: Bounds, now: int) -> list[Change]:
    """Return at most one change of each claim."""
    changes: list[Change] = []
    for seen in observations:
        if seen.forecast is None or math.isnan(seen.forecast.upper_percent):
            changes += [_as_percentile(change) for change in percentile([seen], bounds, now)]
        elif change := _one(seen, seen.forecast, bounds, now):
            changes.append(change)
    return changes


def kept_core(request: int, found: Forecast, bounds: Bounds) -> int:
    """Return the points of a guarantee that are not lent under this forecast."""
    return min(request, max(bounds.floor_percent, math.ceil(found.upper_percent)))


def _as_percentile(change: Change) -> Change:
    return replace(change, explanation=f"{TOO_YOUNG} {change.explanation}")


def _one(seen: Observation, found: Forecast, bounds: Bounds, now: int) -> Change | None:
    if seen.lent_core and seen.core_latest > seen.core_request - seen.lent_core and bounds.is_awake(seen):
        return _with_numbers(giving_back(seen, bounds), found)
    kept = kept_core(seen.core_request, found, bounds)
    # What is in use now is not lent, whatever the forecast says.
    kept = min(seen.core_request, max(kept, math.ceil(seen.core_latest)))
    lent = seen.core_request - kept
    if lent < seen.lent_core:
        why = f"{_words(found)} It keeps {kept} of its {seen.core_request} points of core."
        return _with_numbers(lending(seen, lent, why), found)
    if not seen.lends or lent - seen.lent_core < LEAST_POINTS or not bounds.is_rested(seen, now):
        return None
    why = f"{_words(found)} Best-effort claims may use {lent} of its {seen.core_request} points of core meanwhile."
    return _with_numbers(lending(seen, lent, why), found)


def _words(found: Forecast) -> str:
    whose = "it" if found.source == "claim" else "its tenant's claims"
    words = (
        f"By {found.days:.0f} days of use of {whose}, it will need at most {found.upper_percent:.0f} % of a GPU in the "
        f"next minutes with a risk of {found.risk_percent} %"
    )
    if found.wrong_percent is None:
        return f"{words}; no forecast of it has been judged yet."
    return f"{words}; {found.wrong_percent:.1f} % of its last {found.judged} forecasts were too low."


def _with_numbers(change: Change, found: Forecast) -> Change:
    numbers = {
        "forecast_percent": round(found.upper_percent, 1),
        "expected_percent": round(found.expected_percent, 1),
        "risk_percent": float(found.risk_percent),
        "forecast_days": round(found.days, 1),
    }
    if found.wrong_percent is not None:
        numbers["wrong_percent"] = round(found.wrong_percent, 1)
    return replace(change, numbers={**change.numbers, **numbers})
