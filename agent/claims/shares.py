"""The check of a claim's GPU compute against its limit, by NVML's own account and not by libvcuda's.

Libvcuda meters what goes through it: a program that has a slot and launches past it, or that keeps to limits which it
forged for itself, uses compute that nobody counts. NVML sees it. But NVML's percentages of processes that share a GPU
are wrong (two equal ones read 60 and 40 on an H200), so this judges with a wide margin: the sum of a claim's processes
on a GPU, over ten seconds and in either half of them, against one and a half times what the claim may use while nobody
else wants the GPU, and ten points. So `burst` may burst, a limit that was just lowered counts for the whole window, and
a limit of 60 percent or more is not checked: an excess over it cannot be told from the error.

Pure but for the runtimes' pages.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from agent.claims.claim import ClaimRuntime, gpu_key

# NVML's last percentages by the GPU's uuid and by pid; a GPU without a new sample is left out.
Measured = Mapping[str, Mapping[int, float]]
Key = tuple[str, str]

WINDOW_SECONDS = 10.0
# NVML has a new sample every 200 ms; after a longer gap the window begins anew.
LONGEST_GAP_SECONDS = 3.0
LEAST_READINGS = 8
FACTOR, POINTS = 1.5, 10.0
WHOLE = 100.0


class _Reading(NamedTuple):
    at: float
    percent: float
    limit: int


class Over(NamedTuple):
    """The measured percent of a claim on one GPU over the window, above its limit."""

    percent: float
    limit: int


class Shares:
    """The last readings of each claim on each GPU."""

    def __init__(self) -> None:
        self._readings: dict[Key, deque[_Reading]] = {}

    def take(
        self, measured: Measured, pids: Mapping[Key, Iterable[int]], runtimes: Mapping[str, ClaimRuntime], *, now: float
    ) -> dict[Key, Over]:
        """Add these claims' measured processes; return the claims above their share, by claim and GPU."""
        self._readings = {key: readings for key, readings in self._readings.items() if key in pids}
        for key, mine in pids.items():
            claim_uid, gpu_uuid = key
            if gpu_uuid not in measured:
                continue
            limit = _limit(runtimes[claim_uid], gpu_uuid)
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
        # One reading older than the window stays, so that the whole window is covered.
        while len(readings) > 1 and reading.at - readings[1].at >= WINDOW_SECONDS:
            readings.popleft()


def bound(limit: int) -> float:
    """Return the measured percent of a GPU above which a claim counts as above this limit."""
    return limit * FACTOR + POINTS


def over(readings: list[_Reading]) -> Over | None:
    """Return the excess if all readings show it: over a whole window, and in either half of it."""
    if len(readings) < LEAST_READINGS or readings[-1].at - readings[0].at < WINDOW_SECONDS:
        return None
    limit = max(reading.limit for reading in readings)
    half = len(readings) // 2
    means = [sum(one.percent for one in part) / len(part) for part in (readings[:half], readings[half:])]
    return Over(sum(means) / 2, limit) if min(means) > bound(limit) else None


def _limit(runtime: ClaimRuntime, gpu_uuid: str) -> int | None:
    """Return the percent of the GPU that the claim may use alone; None if it has nothing there."""
    assignment = runtime.occupant(gpu_key(gpu_uuid))
    return None if assignment is None else runtime.alone_percent(assignment)
