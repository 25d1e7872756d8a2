"""Shares of GPU time over windows: by the claims' pages, and by the programs' own rows."""

import bisect
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

WINDOW_SECONDS = 0.5


@dataclass(frozen=True)
class Spread:
    """Mean, standard deviation, least, greatest and number of some values; zeros of nothing."""

    mean: float
    sd: float
    least: float
    most: float
    count: int

    @classmethod
    def of(cls, values: Iterable[float]) -> "Spread":
        kept = list(values)
        if not kept:
            return cls(0.0, 0.0, 0.0, 0.0, 0)
        sd = statistics.stdev(kept) if len(kept) > 1 else 0.0
        return cls(statistics.mean(kept), sd, min(kept), max(kept), len(kept))


@dataclass(frozen=True)
class Window:
    """Two readings of a claim's page: CLOCK_MONOTONIC seconds, percent of one GPU's time."""

    begin: float
    end: float
    share: float


@dataclass(frozen=True)
class Course:
    """Windows of one claim over some time."""

    windows: Sequence[Window]

    @property
    def begin(self) -> float:
        return self.windows[0].begin

    @property
    def end(self) -> float:
        return self.windows[-1].end

    @property
    def share(self) -> float:
        """Return the share over the whole time, in percent."""
        total = sum(window.share * (window.end - window.begin) for window in self.windows)
        return total / (self.end - self.begin)

    @property
    def spread(self) -> Spread:
        return Spread.of(window.share for window in self.windows)


class PageReader:
    """A reader of one claim's GPU time on its first GPU."""

    def __init__(self, usage: Callable[[], Mapping[str, int]]) -> None:
        self._usage = usage
        self._readings: list[tuple[float, int]] = []

    def read(self) -> None:
        self._readings.append((time.monotonic(), self._usage()["gpu_time_ns"]))

    def course(self) -> Course:
        pairs = zip(self._readings, self._readings[1:], strict=False)
        return Course([Window(t0, t1, (ns1 - ns0) / (t1 - t0) / 1e7) for (t0, ns0), (t1, ns1) in pairs])


def watch(claims: Mapping[str, Any], seconds: float, window: float = WINDOW_SECONDS) -> dict[str, Course]:
    """Read every claim's page at the same times for so long; at least one window."""
    readers = {name: PageReader(claim.usage) for name, claim in claims.items()}
    begin = time.monotonic()
    for number in range(max(1, round(seconds / window)) + 1):
        time.sleep(max(0.0, begin + number * window - time.monotonic()))
        for reader in readers.values():
            reader.read()
    return {name: reader.course() for name, reader in readers.items()}


def count_at(rows: Sequence[Mapping[str, Any]], counter: str, at: float) -> float:
    """Interpolate the counter at that time between two rows; outside of them, return the nearest.

    A program that is held back prints no rows meanwhile: its count must not be divided by the rest of the time.
    """
    after = bisect.bisect_left(rows, at, key=lambda row: float(row["at"]))
    if after in {0, len(rows)}:
        return float(rows[min(after, len(rows) - 1)][counter]) if rows else 0.0
    first, second = rows[after - 1], rows[after]
    part = (at - first["at"]) / (second["at"] - first["at"])
    return float(first[counter] + part * (second[counter] - first[counter]))


def rate(rows: Sequence[Mapping[str, Any]], counter: str, begin: float, end: float) -> float:
    """Return counts a second between two times."""
    return (count_at(rows, counter, end) - count_at(rows, counter, begin)) / (end - begin)


def rates(
    rows: Sequence[Mapping[str, Any]], counter: str, begin: float, end: float, window: float = WINDOW_SECONDS
) -> list[float]:
    """Return counts a second in each whole window."""
    starts = [begin + number * window for number in range(max(1, int((end - begin) / window + 0.05)))]
    return [rate(rows, counter, start, min(start + window, end)) for start in starts]
