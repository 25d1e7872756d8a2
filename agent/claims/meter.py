"""The usage of each assignment since the last reading: differences of counters that only grow."""

from collections.abc import Container, Iterable, Mapping
from typing import NamedTuple
from uuid import UUID

from msgspec import UNSET, structs

from agent import wire
from agent.claims.claim import ClaimRuntime
from agent.claims.pages import LimitSlot
from agent.claims.usage import Moved, Totals

# The wire's bound; a share above it is a forged counter, not a measurement.
MOST_PERCENT = 1000.0
MOST_MS = 1e9
MOST_RATE = 1e9
MOST_BYTES, MOST_BYTES_RATE = 2**63 - 1, 1e15
NOTHING: Mapping[str, int] = {}


class _Reading(NamedTuple):
    at: float
    totals: Totals
    # None: it may not borrow memory.
    moved: Moved | None = None


class Counted(NamedTuple):
    """Sums of an assignment that borrows memory, since this agent first read it."""

    moved_bytes: int = 0
    stood_ns: int = 0


class Meter:
    """The last reading of each assignment."""

    def __init__(self) -> None:
        self._last: dict[str, _Reading] = {}
        # By assignment that may borrow memory.
        self.counted: dict[str, Counted] = {}

    def read(
        self,
        runtimes: dict[str, ClaimRuntime],
        *,
        now: float,
        suspended: Container[str] = (),
        parts_of_gpus: Mapping[str, int] = NOTHING,
    ) -> list[wire.AssignmentUsage]:
        """Return the usage of each assignment since the last call, by the runtimes' last refresh.

        `now` is the monotonic clock's. A new assignment's first usage is zero: its counters may be older than this
        agent. The claims `suspended` have nothing on their GPUs, though their programs' account stands.
        `parts_of_gpus`: by assignment, the percent of its GPU that its MIG device is; usage is in percent of the GPU.
        """
        fresh: dict[str, _Reading] = {}
        spans = []
        for claim_uid, runtime in runtimes.items():
            for slot in runtime.slots.values():
                totals = runtime.totals.get(slot.gpu, Totals())
                if claim_uid in suspended:
                    totals = totals._replace(memory_bytes=0)
                reading = _Reading(now, totals, runtime.moved.get(slot.gpu))
                fresh[slot.assignment_uid] = reading
                before = self._last.get(slot.assignment_uid, reading)
                spans.append(_Span(slot, runtime.alone_percent(slot.assignment_uid), before, reading))
        self._last = fresh
        self._count(spans)
        parts = _divide(spans)
        usages = [_usage(span, parts.get(span.slot.gpu, 1.0)) for span in spans]
        return [_scale(one, parts_of_gpus[one.uid]) if one.uid in parts_of_gpus else one for one in usages]

    def _count(self, spans: "Iterable[_Span]") -> None:
        counted = {}
        for uid, span in ((one.slot.assignment_uid, one) for one in spans if one.after.moved is not None):
            before = self.counted.get(uid, Counted())
            counted[uid] = Counted(before.moved_bytes + span.moved_bytes, before.stood_ns + span.stood_ns)
        self.counted = counted

    @property
    def longest_kernels(self) -> dict[str, float]:
        """Return the longest kernel of each assignment by the last `read`, in seconds, where one was measured."""
        found = {uid: reading.totals.longest_kernel_us / 1e6 for uid, reading in self._last.items()}
        return {uid: seconds for uid, seconds in found.items() if seconds}


def with_instances(
    gpus: list[wire.GpuUsage], usages: Iterable[wire.AssignmentUsage], desired: wire.Desired | None
) -> list[wire.GpuUsage]:
    """Return the usage of the GPUs with that of MIG instances: NVML has no utilisation of a GPU in MIG mode."""
    of = {one.uid: one.gpu_uuid for one in desired.assignments if one.mig is not None} if desired is not None else {}
    sums: dict[str, float] = {}
    for usage in usages:
        if (gpu := of.get(usage.uid)) is not None:
            sums[gpu] = sums.get(gpu, 0.0) + usage.core_percent
    return [structs.replace(gpu, core_percent=sums[gpu.uuid]) if gpu.uuid in sums else gpu for gpu in gpus]


class _Span(NamedTuple):
    """One assignment between two readings."""

    slot: LimitSlot
    alone_percent: int
    before: _Reading
    after: _Reading

    @property
    def wall_ns(self) -> float:
        return (self.after.at - self.before.at) * 1e9

    @property
    def gpu_time_ns(self) -> int:
        return max(self.after.totals.gpu_time_ns - self.before.totals.gpu_time_ns, 0)

    # Both fall when a process ends.
    @property
    def moved_bytes(self) -> int:
        return max((self.after.moved or Moved()).moved_bytes - (self.before.moved or Moved()).moved_bytes, 0)

    @property
    def stood_ns(self) -> int:
        return max((self.after.moved or Moved()).stood_ns - (self.before.moved or Moved()).stood_ns, 0)


def _divide(spans: list[_Span]) -> dict[UUID, float]:
    """Return the correction factor of each GPU whose claims together report more than the time that has passed.

    Without turns (policy native, an arbiter that has ended) the driver slices the GPU among them, and the measured
    times of each contain slices of the others. No claim is counted with more than the whole time, so a forged counter
    takes at most half of an honest one's.
    """
    sums: dict[UUID, float] = {}
    sharing: dict[UUID, int] = {}
    for span in spans:
        sums[span.slot.gpu] = sums.get(span.slot.gpu, 0.0) + min(span.gpu_time_ns, span.wall_ns)
        sharing[span.slot.gpu] = sharing.get(span.slot.gpu, 0) + (span.gpu_time_ns > 0)
    walls: dict[UUID, float] = {}
    for span in spans:
        walls[span.slot.gpu] = max(walls.get(span.slot.gpu, 0.0), span.wall_ns)
    return {gpu: walls[gpu] / total for gpu, total in sums.items() if sharing[gpu] > 1 and total > walls[gpu] > 0}


def _usage(span: _Span, part: float) -> wire.AssignmentUsage:
    slot, before, after, wall_ns = span.slot, span.before, span.after, span.wall_ns
    gpu_time_ns = span.gpu_time_ns if part == 1.0 else min(span.gpu_time_ns, wall_ns) * part
    return wire.AssignmentUsage(
        uid=slot.assignment_uid,
        core_percent=_percent(gpu_time_ns, wall_ns, MOST_PERCENT),
        core_limit_percent=span.alone_percent,
        # libvcuda sums it over waiting threads; as a share of the time it ends at 100.
        throttled_percent=_percent(after.totals.throttled_ns - before.totals.throttled_ns, wall_ns, 100.0),
        memory_bytes=after.totals.memory_bytes,
        memory_limit_bytes=slot.memory_bytes,
        processes=after.totals.processes,
        gpu_time_ms=round(min(gpu_time_ns / 1e6, MOST_MS), 3),
        launches_per_second=_rate(after.totals.launches - before.totals.launches, wall_ns),
        borrowed=UNSET if after.moved is None else _borrowed(span, after.moved),
    )


def _borrowed(span: _Span, moved: Moved) -> wire.BorrowedMemory:
    slot, wall_ns = span.slot, span.wall_ns
    promised = slot.borrowing.memory_request_bytes if slot.borrowing else slot.memory_bytes
    return wire.BorrowedMemory(
        borrowed_bytes=max(span.after.totals.memory_bytes - promised, 0),
        # A tenant's page is not believed beyond the limit.
        out_bytes=min(moved.out_bytes, slot.memory_bytes),
        moved_bytes=min(span.moved_bytes, MOST_BYTES),
        moved_bytes_per_second=_rate(span.moved_bytes, wall_ns, MOST_BYTES_RATE),
        stood_ms=round(min(span.stood_ns / 1e6, MOST_MS), 3),
        # Of several processes, their sum.
        stood_percent=_percent(span.stood_ns, wall_ns, 100.0),
    )


def _scale(usage: wire.AssignmentUsage, part: int) -> wire.AssignmentUsage:
    core = round(usage.core_percent * part / 100, 2)
    return structs.replace(usage, core_percent=core, core_limit_percent=usage.core_limit_percent * part // 100)


def _rate(count: int, wall_ns: float, most: float = MOST_RATE) -> float:
    return round(min(max(count * 1e9 / wall_ns, 0.0), most), 2) if wall_ns > 0 else 0.0


def _percent(part_ns: float, whole_ns: float, most: float) -> float:
    if whole_ns <= 0:
        return 0.0
    return round(min(max(100.0 * part_ns / whole_ns, 0.0), most), 2)
