"""How much each assignment used since it was last asked: differences of counters that only grow."""

from typing import NamedTuple

from agent import wire
from agent.holding.claim import Holding
from agent.holding.pages import LimitSlot, Totals

# What the wire takes; a share past it is a forged counter, not a measurement.
MOST_PERCENT = 1000.0
MOST_MS = 1e9


class _Reading(NamedTuple):
    at: float
    totals: Totals


class Meter:
    """The last reading of each assignment."""

    def __init__(self) -> None:
        self._last: dict[str, _Reading] = {}

    def read(self, holdings: dict[str, Holding], *, now: float) -> list[wire.AssignmentUsage]:
        """What each assignment did since the last call, by the holdings' last refresh.

        `now` is the monotonic clock's. An assignment that is seen for the first time has done nothing yet: what its
        counters say may be older than this agent.
        """
        fresh: dict[str, _Reading] = {}
        usages = []
        for holding in holdings.values():
            for slot in holding.slots.values():
                reading = _Reading(now, holding.totals.get(slot.gpu, Totals()))
                fresh[slot.assignment_uid] = reading
                before = self._last.get(slot.assignment_uid, reading)
                usages.append(_usage(slot, holding.alone_percent(slot.assignment_uid), before, reading))
        self._last = fresh
        return usages


def _usage(slot: LimitSlot, alone_percent: int, before: _Reading, after: _Reading) -> wire.AssignmentUsage:
    wall_ns = (after.at - before.at) * 1e9
    return wire.AssignmentUsage(
        uid=slot.assignment_uid,
        core_percent=_percent(after.totals.gpu_time_ns - before.totals.gpu_time_ns, wall_ns, MOST_PERCENT),
        core_limit_percent=alone_percent,
        # Summed over waiting threads by libvcuda; as a share of the time it ends at 100.
        throttled_percent=_percent(after.totals.throttled_ns - before.totals.throttled_ns, wall_ns, 100.0),
        memory_bytes=after.totals.memory_bytes,
        memory_limit_bytes=slot.memory_bytes,
        processes=after.totals.processes,
        gpu_time_ms=round(min(max(after.totals.gpu_time_ns - before.totals.gpu_time_ns, 0) / 1e6, MOST_MS), 3),
    )


def _percent(part_ns: int, whole_ns: float, most: float) -> float:
    if whole_ns <= 0:
        return 0.0
    return round(min(max(100.0 * part_ns / whole_ns, 0.0), most), 2)
