"""The mix of typical requests, learned from arrivals.

A type is a request's shape: GPUs, core and memory on each, CPU, models. The mix counts arrivals by type. When the
counts reach `FULL` together all are halved, so types that no longer arrive are forgotten. Policies see a copy that is
renewed at growing intervals: what was computed from it stays true until then.
"""

from collections.abc import Iterable
from operator import attrgetter
from typing import NamedTuple

from apps.scheduling.core.values import Request

FULL = 1 << 16
# The copy is renewed after a twentieth more has arrived, but not for every few arrivals, and not too late for a busy
# week.
FEWEST, MOST = 50, 1 << 14
MOST_TYPES = 512


class Type(NamedTuple):
    """The shape of a request; no models: any."""

    gpu_count: int
    core: int
    memory_mib: int
    cpu_milli: int
    models: tuple[str, ...]

    @classmethod
    def of(cls, request: Request) -> "Type":
        """Return the type of this request. Memory is rounded to three binary digits, as it has any number of values."""
        models = tuple(sorted(request.models))
        return cls(request.gpu_count, request.core_request, rounded(request.memory_mib), request.cpu_milli, models)


_shape = attrgetter("gpu_count", "core_request", "memory_mib", "cpu_milli", "gpu_model")
Weights = tuple[tuple[Type, int], ...]


def rounded(amount: int) -> int:
    """Return the amount rounded up to three binary digits: 9 becomes 10, 1,025 becomes 1,280."""
    unit = 1 << max(0, amount.bit_length() - 3)
    return -(-amount // unit) * unit


class Mix:
    """The counts, and the copy that policies see: heaviest first, ties by type."""

    def __init__(self, known: Iterable[tuple[Request, int]] = ()) -> None:
        self._counts: dict[Type, int] = {}
        # The types of recent requests: making one takes longer than counting it.
        self._kinds: dict[tuple[object, ...], Type] = {}
        self._total = self._arrived = self._renew_at = 0
        for request, count in known:
            kind = Type.of(request)
            self._counts[kind] = self._counts.get(kind, 0) + count
            self._total += count
        self._arrived = self._total
        self.seen: Weights = self._copy()
        if self._counts:
            self._renew_at = _next(self._arrived)

    def learn(self, request: Request) -> bool:
        """Count one arrival; return True if the copy was renewed."""
        kind = self._kinds.get(key := _shape(request))
        if kind is None:
            if len(self._kinds) >= MOST_TYPES:
                self._kinds.clear()
            self._kinds[key] = kind = Type.of(request)
        self._counts[kind] = self._counts.get(kind, 0) + 1
        self._arrived += 1
        self._total += 1
        if self._total >= FULL:
            self._counts = {kind: count // 2 for kind, count in self._counts.items() if count > 1}
            self._total = sum(self._counts.values())
        if self._arrived < self._renew_at:
            return False
        self._renew_at = _next(self._arrived)
        self.seen = self._copy()
        return True

    def _copy(self) -> Weights:
        return tuple(sorted(self._counts.items(), key=lambda item: (-item[1], item[0]))[:MOST_TYPES])


def most_popular(weights: Weights, percent: int) -> Weights:
    """Return the heaviest types that make up this percentage of all."""
    wanted, taken, total = sum(weight for _, weight in weights) * percent, 0, []
    for kind, weight in weights:
        if taken * 100 >= wanted:
            break
        total.append((kind, weight))
        taken += weight
    return tuple(total)


def _next(arrived: int) -> int:
    return arrived + min(max(FEWEST, arrived // 20), MOST)
