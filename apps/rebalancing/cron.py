"""The policy `cron`: outside of its hours a claim keeps the share that the calendar gives, the rest is lent.

A claim that works outside of the hours gets all of its guarantee back, calendar or not, for the cool-down at least.
"""

from collections.abc import Sequence

from apps.rebalancing.values import Bounds, Change, Observation, giving_back, lending


def cron(observations: Sequence[Observation], bounds: Bounds, now: int) -> list[Change]:
    """Return the changes by the calendar at this moment; of several hours that apply, the first counts."""
    share = next((hours.share_percent for hours in bounds.calendar if hours.include(now)), 100)
    return [change for seen in observations if (change := _one(seen, share, bounds, now))]


def _one(seen: Observation, share: int, bounds: Bounds, now: int) -> Change | None:
    if bounds.is_awake(seen):
        return giving_back(seen, bounds) if seen.lent_core else None
    kept = min(seen.core_request, max(bounds.floor_percent, seen.core_request * share // 100))
    lent = seen.core_request - kept
    if lent < seen.lent_core:
        return lending(seen, lent, f"The calendar gives it {share} % of its {seen.core_request} points of core now.")
    if lent == seen.lent_core or not seen.lends or not bounds.is_rested(seen, now):
        return None
    why = (
        f"The calendar gives it {share} % of its {seen.core_request} points of core now, and it uses "
        f"{seen.core_latest:.0f} % of a GPU: best-effort claims may use {lent} points until it wants them."
    )
    return lending(seen, lent, why)
