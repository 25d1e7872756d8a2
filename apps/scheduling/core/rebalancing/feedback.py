"""Feedback: raise the limit of what is throttled, lend what is idle, take back what was raised and is not used.

Three things keep it from swinging. A raised limit falls only where what was used would stay below 70 % of the lower
one, so what lowers it cannot raise it again. What counts as idle (`idle_percent`) is less than what counts as awake
(`wake_percent`). And after any change of a claim nothing but giving back happens to it within the cool-down.
"""

from collections.abc import Sequence

from apps.scheduling.core.rebalancing.values import (
    Bounds,
    Change,
    Kind,
    Observation,
    giving_back,
    lending,
    numbers_of,
)

# At its limit: a program that is held at 40 % is measured a little below it.
AT_LIMIT_PERCENT = 90
# What is used must stay below this part of a lower limit.
CALM_PERCENT = 70


def feedback(observations: Sequence[Observation], bounds: Bounds, now: int) -> list[Change]:
    """At most one change of each claim."""
    return [change for seen in observations if (change := _one(seen, bounds, now))]


def _one(seen: Observation, bounds: Bounds, now: int) -> Change | None:
    if bounds.awake(seen) and seen.lent_core:
        return giving_back(seen, bounds)
    if not bounds.rested(seen, now) or not bounds.measured(seen):
        return None
    if seen.throttled_mean >= bounds.throttled_percent:
        return _raised(seen, bounds)
    if seen.core_p95 <= bounds.idle_percent and not bounds.awake(seen):
        return _lent(seen, bounds)
    return _lowered(seen, bounds)


def _raised(seen: Observation, bounds: Bounds) -> Change | None:
    """Its own limit holds it back, or others do."""
    waited = f"Its launches waited {seen.throttled_mean:.0f} % of the last {bounds.window_seconds} s"
    if seen.core_mean * 100 >= seen.core_limit * AT_LIMIT_PERCENT:
        limit = min(seen.core_limit + bounds.step_percent, bounds.ceiling_percent)
        if limit <= seen.core_limit:
            return None
        why = f"{waited} while it used {seen.core_mean:.0f} % of a GPU: its limit of {seen.core_limit} % holds it back."
        return _change(seen, "limit", "core_limit", limit, why)
    request = min(
        seen.core_request + min(bounds.step_percent, seen.core_room),
        seen.core_limit,
        bounds.ceiling_percent,
    )
    if request <= seen.core_request:
        return None
    why = (
        f"{waited} though it used {seen.core_mean:.0f} % of a GPU, below its limit of {seen.core_limit} %: "
        f"others want the GPU too, and it is guaranteed {seen.core_request} %."
    )
    return _change(seen, "resize", "core_request", request, why)


def _lent(seen: Observation, bounds: Bounds) -> Change | None:
    lent = seen.core_request - bounds.floor_percent
    if not seen.lends or lent <= seen.lent_core:
        return None
    why = (
        f"It used at most {seen.core_p95:.1f} % of a GPU in 95 of 100 seconds of the last {bounds.window_seconds} s: "
        f"best-effort claims may use {lent} of its {seen.core_request} points of core until it wants them."
    )
    return lending(seen, lent, why)


def _lowered(seen: Observation, bounds: Bounds) -> Change | None:
    """A raised limit goes back towards what was asked for; never below it."""
    limit = max(seen.asked_core_limit, seen.core_request, seen.core_limit - bounds.step_percent)
    if limit >= seen.core_limit or seen.core_p95 * 100 > limit * CALM_PERCENT:
        return None
    why = f"It used at most {seen.core_p95:.0f} % of a GPU of the {seen.core_limit} % to which its limit was raised."
    return _change(seen, "limit", "core_limit", limit, why)


def _change(seen: Observation, kind: Kind, name: str, value: int, why: str) -> Change:
    before = {name: getattr(seen, name)}
    return Change(seen.claim, kind, before, {name: value}, why, numbers_of(seen))
