"""Longest times without progress, by the claims' pages and by the programs' own rows."""

import bisect
import itertools
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Self

SAMPLE_SECONDS = 0.002


class Sampler:
    """A thread that reads the GPU time of several claims every two milliseconds. Use as a context manager."""

    def __init__(self, claims: Mapping[str, Any]) -> None:
        self._claims = dict(claims)
        self.times: list[float] = []
        self._read: dict[str, list[int]] = {name: [] for name in claims}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _sample(self) -> None:
        due = time.monotonic()
        while not self._ended.is_set():
            found = {name: claim.usage()["gpu_time_ns"] for name, claim in self._claims.items()}
            for name, value in found.items():
                self._read[name].append(value)
            self.times.append(time.monotonic())
            due = max(due + SAMPLE_SECONDS, self.times[-1])
            time.sleep(max(0.0, due - time.monotonic()))

    def gap_ms(self, names: Collection[str], begin: float, end: float) -> float:
        """Return the longest time in which the GPU time of none of them grew (see :func:`longest_ms`)."""
        marks = {
            self.times[at]
            for name in names
            for at in range(1, len(self.times))
            if self._read[name][at] > self._read[name][at - 1]
        }
        return longest_ms(sorted(marks), begin, end)

    def share(self, name: str, begin: float, end: float) -> float:
        """Return the percentage of GPU time charged to the claim in the window."""
        values = self._read[name]
        first, last = (min(bisect.bisect_left(self.times, at), len(self.times) - 1) for at in (begin, end))
        spent = self.times[last] - self.times[first]
        return (values[last] - values[first]) / spent / 1e7 if spent > 0 else 0.0


def row_gap_ms(rows: Sequence[Mapping[str, Any]], counter: str, begin: float, end: float) -> float:
    """Return the longest time between two rows whose counter differs (see :func:`longest_ms`)."""
    counted = [row for row in rows if counter in row]
    marks = [float(b["at"]) for a, b in itertools.pairwise(counted) if b[counter] > a[counter]]
    return longest_ms(marks, begin, end)


def longest_ms(marks: Sequence[float], begin: float, end: float) -> float:
    """Return the longest time between two ordered marks, in milliseconds; begin and end of the window are marks."""
    inside = [mark for mark in marks if begin < mark < end]
    return 1e3 * max(b - a for a, b in itertools.pairwise([begin, *inside, end]))
