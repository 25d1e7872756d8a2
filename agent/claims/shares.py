"""Whether a claim uses more of a GPU's compute than it may, by NVML's own account and not by libvcuda's.

Libvcuda meters what goes through it: a program that has a slot and launches past it, or that keeps to limits which it
forged for itself, uses what nobody counts. NVML sees it. But of processes that share a GPU NVML's percentages are wrong
(two equal ones read 60 and 40 on an H200), so this judges with a wide margin: the sum of a claim's processes on a GPU,
over ten seconds and in either half of them, against one and a half times what the claim may use while nobody else wants
the GPU, and ten points. So `burst` may burst, a limit that was just lowered counts for the whole window, and of a limit
of 60 percent or more nothing is said: what is above it cannot be told from the error.

Pure but for the holdings' pages.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from agent.claims.claim import Holding, gpu_key

# By the GPU's uuid: what NVML last said of its processes, by pid, in percent; a GPU without a new sample is left out.
Measured = Mapping[str, Mapping[int, float]]
Key = tuple[str, str]

WINDOW_SECONDS = 10.0
# NVML has a new sample every 200 ms; without one for so long the window begins anew.
LONGEST_GAP_SECONDS = 3.0
LEAST_READINGS = 8
FACTOR, POINTS = 1.5, 10.0
WHOLE = 100.0


class _Reading(NamedTuple):
    at: float
    percent: float
    limit: int


class Over(NamedTuple):
    """A claim on one GPU above what it may use: percent over the window, and the limit."""

    percent: float
    limit: int


class Shares:
    """The last readings of each claim on each GPU."""

    def __init__(self) -> None:
        self._readings: dict[Key, deque[_Reading]] = {}

    def take(
        self, measured: Measured, pids: Mapping[Key, Iterable[int]], holdings: Mapping[str, Holding], *, now: float
    ) -> dict[Key, Over]:
        """Add what was measured of these claims' processes; those that are above their share, by claim and GPU."""
        self._readings = {key: readings for key, readings in self._readings.items() if key in pids}
        for key, mine in pids.items():
            claim_uid, gpu_uuid = key
            if gpu_uuid not in measured:
                continue
            limit = _limit(holdings[claim_uid], gpu_uuid)
            if limit is None or bound(limit) >= WHOLE:
                self._readings.pop(key, None)
            else:
                percent = sum(measured[gpu_uuid].get(pid, 0.0) for pid in mine)
                self._add(key, _Reading(now, percent, limit))
        judged = {key: over(list(readings)) for key, readings in self._readings.items()}
        return {key: found for key, found in judged.items() if found is not None}

    def _add(self, key: Key, reading: _Reading) -> None:
        readings = self._readings.setdefault(key, deque())
        if readings and reading.at - readings[-1].at > LONGEST_GAP_SECONDS:
            readings.clear()
        readings.append(reading)
        # One that is older than the window stays, so that all of it is covered.
        while len(readings) > 1 and reading.at - readings[1].at >= WINDOW_SECONDS:
            readings.popleft()


def bound(limit: int) -> float:
    """What a claim must be measured above, in percent of a GPU, to be above this limit."""
    return limit * FACTOR + POINTS


def over(readings: list[_Reading]) -> Over | None:
    """Whether all of these say so: over a whole window, and in either half of it."""
    if len(readings) < LEAST_READINGS or readings[-1].at - readings[0].at < WINDOW_SECONDS:
        return None
    limit = max(reading.limit for reading in readings)
    half = len(readings) // 2
    means = [sum(one.percent for one in part) / len(part) for part in (readings[:half], readings[half:])]
    return Over(sum(means) / 2, limit) if min(means) > bound(limit) else None


def _limit(holding: Holding, gpu_uuid: str) -> int | None:
    """What the claim may use of the GPU while nobody else wants it; None where it has nothing there."""
    assignment = holding.occupant(gpu_key(gpu_uuid))
    return None if assignment is None else holding.alone_percent(assignment)
