"""The policy `feedback`: raise the limit of throttled claims, lend idle core, lower raised limits that are not used.

Three things keep it from swinging. A raised limit falls only if the use would stay below 70 % of the lower one, so what
lowers it cannot raise it again. The idle threshold (`idle_percent`) is below the awake threshold (`wake_percent`). And
after any change of a claim only giving back is done to it within the cool-down.
"""

from collections.abc import Sequence

from apps.rebalancing.values import Bounds, Change, Observation, changing, giving_back, lending

# A program that is limited to 40 % is measured a little below that.
AT_LIMIT_PERCENT = 90
# The use must stay below this part of a lower limit.
CALM_PERCENT = 70


def feedback(observations: Sequence[Observation], bounds: Bounds, now: int) -> list[Change]:
    """Return at most one change of each claim."""
    return [change for seen in observations if (change := _one(seen, bounds, now))]


def _one(seen: Observation, bounds: Bounds, now: int) -> Change | None:
    if bounds.is_awake(seen) and seen.lent_core:
        return giving_back(seen, bounds)
    if not bounds.is_rested(seen, now) or not bounds.is_measured(seen):
        return None
    if seen.throttled_mean >= bounds.throttled_percent:
        return _raise(seen, bounds)
    if seen.core_p95 <= bounds.idle_percent and not bounds.is_awake(seen):
        return _lend(seen, bounds)
    return _lower(seen, bounds)


def _raise(seen: Observation, bounds: Bounds) -> Change | None:
    """Raise the limit if the claim's own limit holds it back, else its request."""
    waited = f"Its launches waited {seen.throttled_mean:.0f} % of the last {bounds.window_seconds} s"
    if seen.core_mean * 100 >= seen.core_limit * AT_LIMIT_PERCENT:
        limit = min(seen.core_limit + bounds.step_percent, bounds.ceiling_percent)
        if limit <= seen.core_limit:
            return None
        why = f"{waited} while it used {seen.core_mean:.0f} % of a GPU: its limit of {seen.core_limit} % holds it back."
        return changing(seen, "limit", "core_limit", limit, why)
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
    return changing(seen, "resize", "core_request", request, why)


def _lend(seen: Observation, bounds: Bounds) -> Change | None:
    lent = seen.core_request - bounds.floor_percent
    if not seen.lends or lent <= seen.lent_core:
        return None
    why = (
        f"It used at most {seen.core_p95:.1f} % of a GPU in 95 of 100 seconds of the last {bounds.window_seconds} s: "
        f"best-effort claims may use {lent} of its {seen.core_request} points of core until it wants them."
    )
    return lending(seen, lent, why)


def _lower(seen: Observation, bounds: Bounds) -> Change | None:
    """Lower a raised limit towards the one that was asked for; never below it."""
    limit = max(seen.asked_core_limit, seen.core_request, seen.core_limit - bounds.step_percent)
    if limit >= seen.core_limit or seen.core_p95 * 100 > limit * CALM_PERCENT:
        return None
    why = f"It used at most {seen.core_p95:.0f} % of a GPU of the {seen.core_limit} % to which its limit was raised."
    return changing(seen, "limit", "core_limit", limit, why)
