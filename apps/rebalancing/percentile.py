"""The policy `percentile`: the guarantee is the 95th percentile of the use, and a margin.

Core above that is lent; for missing core, and for memory, a new size is proposed. A change of less than five points of
core, or of less than a fifth of the memory, is not made: measurements swing by that much.
"""

from collections.abc import Sequence

from apps.rebalancing.values import Bounds, Change, Observation, changing, giving_back, lending

LEAST_POINTS = 5
LEAST_MEMORY_PERCENT = 20


def percentile(observations: Sequence[Observation], bounds: Bounds, now: int) -> list[Change]:
    """Return at most one change of each claim; core goes before memory."""
    changes: list[Change] = []
    for seen in observations:
        if seen.lent_core and seen.core_latest > seen.core_request - seen.lent_core and bounds.is_awake(seen):
            changes.append(giving_back(seen, bounds))
        elif bounds.is_rested(seen, now) and bounds.is_measured(seen):
            change = _core(seen, bounds) or _memory(seen, bounds)
            changes += [change] if change else []
    return changes


def _core(seen: Observation, bounds: Bounds) -> Change | None:
    wanted = min(max(_with_margin(seen.core_p95, bounds), bounds.floor_percent), bounds.ceiling_percent)
    used = (
        f"It used at most {seen.core_p95:.0f} % of a GPU in 95 of 100 seconds of the last {bounds.window_seconds} s; "
        f"with a margin of {bounds.margin_percent} % that is {wanted} %."
    )
    if wanted > seen.core_request:
        request = min(wanted, seen.core_request + min(bounds.step_percent, seen.core_room), seen.core_limit)
        if request - seen.core_request < LEAST_POINTS:
            return None
        why = f"{used} It is guaranteed {seen.core_request} %."
        return changing(seen, "resize", "core_request", request, why)
    lent = min(seen.core_request - wanted, seen.lent_core + bounds.step_percent)
    if not seen.lends or lent - seen.lent_core < LEAST_POINTS:
        return None
    return lending(seen, lent, f"{used} Best-effort claims may use {lent} points of what it is guaranteed.")


def _memory(seen: Observation, bounds: Bounds) -> Change | None:
    """Shrink memory, but never below the most that was in use: memory in use cannot be taken away."""
    wanted = max(_with_margin(seen.memory_p95_mib, bounds), seen.memory_most_mib, 1)
    if wanted * 100 > seen.memory_mib * (100 - LEAST_MEMORY_PERCENT):
        return None
    why = (
        f"At most {seen.memory_most_mib} of {seen.memory_mib} MiB were in use in the last {bounds.window_seconds} s, "
        f"{seen.memory_p95_mib} MiB in 95 of 100 seconds; with a margin of {bounds.margin_percent} % that is {wanted}."
    )
    return changing(seen, "resize", "memory_mib", wanted, why)


def _with_margin(used: float, bounds: Bounds) -> int:
    """Return the amount with the margin, rounded up."""
    return -int(-used * (100 + bounds.margin_percent) // 100)
