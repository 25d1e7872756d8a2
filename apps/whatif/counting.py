"""Counts of a replay: core and memory over time, and the waits of claims."""

from collections import Counter, defaultdict
from collections.abc import Sequence

from apps.scheduling.core.values import GpuState, Request
from apps.whatif.values import Size

WHOLE = 100


class Allocation:
    """Amounts given to claims and asked for by them, from moment to moment, and their sums over time.

    `move` changes the present, `pass_to` lets time pass. Sums are in percent-seconds and MiB-seconds of single GPUs.
    """

    def __init__(self, gpus: Sequence[GpuState], *, begin: float) -> None:
        self.capacity = Size(WHOLE * len(gpus), sum(gpu.memory_mib for gpu in gpus))
        self._now = begin
        self.given = self.asked = Size(0, 0)
        # By GPU: claims and core of each tenant.
        self._on: dict[str, Counter[str]] = {}
        self._core: dict[str, int] = {}
        self._mixed = 0
        self.sums: dict[str, float] = defaultdict(float)

    def pass_to(self, now: float, *, claims_wait: bool) -> None:
        """Count the time since the last change. `claims_wait`: a claim waited, so that what was free is stranded."""
        seconds = now - self._now
        self._now = now
        rates = {
            "core": self.given.core,
            "memory": self.given.memory_mib,
            "rounding_core": self.given.core - self.asked.core,
            "rounding_memory": self.given.memory_mib - self.asked.memory_mib,
            "mixed": self._mixed,
        }
        if claims_wait:
            rates["stranded_core"] = self.capacity.core - self.given.core
            rates["stranded_memory"] = self.capacity.memory_mib - self.given.memory_mib
        for name, rate in rates.items():
            self.sums[name] += seconds * rate

    def move(self, gpus: Sequence[str], request: Request, asked: Size, tenant: str, sign: int) -> None:
        """Add a claim on these GPUs, or remove it with sign -1."""
        count = sign * len(gpus)
        self.given = _plus(self.given, Size(request.core_request, request.memory_mib), count)
        self.asked = _plus(self.asked, asked, count)
        for gpu in gpus:
            on = self._on.setdefault(gpu, Counter())
            self._mixed -= self._core.get(gpu, 0) if len(on) > 1 else 0
            on[tenant] += sign
            if not on[tenant]:
                del on[tenant]
            self._core[gpu] = self._core.get(gpu, 0) + sign * request.core_request
            self._mixed += self._core[gpu] if len(on) > 1 else 0


def _plus(size: Size, more: Size, count: int) -> Size:
    return Size(size.core + count * more.core, size.memory_mib + count * more.memory_mib)


def percent(part: float, whole: float) -> float:
    """Return the part in percent of the whole, to a hundredth; zero of nothing."""
    return round(100 * part / whole, 2) if whole else 0.0


def percentile(values: Sequence[float], share: int) -> float:
    """Return the least value that at least this percentage of the values do not exceed; zero of none."""
    ordered = sorted(values)
    return ordered[max(0, -(-len(ordered) * share // 100) - 1)] if ordered else 0.0
