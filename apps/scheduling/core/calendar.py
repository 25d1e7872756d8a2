"""The calendar of GPUs: holds over time, the windows that can be booked, and the room withheld from claims.

Times are microseconds since 1970, windows are [begin, end). Sums over a GPU change only at the begin or end of a hold,
so checking those moments is checking all of them. A borrower (`yields`) is there until a reservation needs its room: it
counts only where no reservation does. A claim `within` a reservation uses the room that the reservation holds. The use
of a GPU without a claim (`OUTSIDE`) has no known end.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, pairwise

from apps.scheduling.core.placement import place
from apps.scheduling.core.values import GpuState, Placed, Refused, Request

FOREVER = 2**62
WHOLE = 100
CLAIM, RESERVATION, OUTSIDE = "claim", "reservation", "outside"
# (core, memory_mib) of one GPU
Room = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Hold:
    """An amount of one GPU that a claim or reservation, or neither, takes for a time."""

    gpu: str
    core: int
    memory_mib: int
    begin_us: int
    end_us: int
    kind: str
    holder: str
    tenant: str
    yields: bool = False
    within: str | None = None


@dataclass(frozen=True, slots=True)
class Obstacle:
    """A holder in the way of a window, on how many GPUs, and until when; None: without an end."""

    kind: str
    holder: str
    tenant: str
    gpus: int
    until_us: int | None


@dataclass(frozen=True, slots=True)
class Window:
    """A time at which the request fits, and the GPUs that would carry it."""

    begin_us: int
    end_us: int
    gpus: tuple[str, ...]


def by_gpu(holds: Iterable[Hold]) -> dict[str, list[Hold]]:
    """Return the holds of each GPU."""
    found: dict[str, list[Hold]] = defaultdict(list)
    for hold in holds:
        found[hold.gpu].append(hold)
    return found


def peak(holds: Iterable[Hold], begin: int, end: int, *, booking: bool = False) -> Room:
    """Return the most core and the most memory of one GPU that is taken at any moment of the window.

    For a booking no borrower counts: the reservation would be there all the time.
    """
    inside = [hold for hold in holds if hold.begin_us < end and hold.end_us > begin]
    edges = {moment for hold in inside for moment in (hold.begin_us, hold.end_us) if begin < moment < end}
    sums = [_sum(inside, moment, booking=booking) for moment in (begin, *edges)]
    return max(core for core, _ in sums), max(memory for _, memory in sums)


def _sum(holds: Sequence[Hold], moment: int, *, booking: bool) -> Room:
    present = [hold for hold in holds if hold.begin_us <= moment < hold.end_us]
    reserved = {hold.holder for hold in present if hold.kind == RESERVATION}
    alone = not (reserved or booking)
    counted = [hold for hold in present if hold.within not in reserved and (alone or not hold.yields)]
    return sum(hold.core for hold in counted), sum(hold.memory_mib for hold in counted)


def free_throughout(gpus: Iterable[GpuState], holds: Iterable[Hold], begin: int, end: int) -> list[GpuState]:
    """Return the GPUs with the room that is free through the whole window, for a booking."""
    taken = by_gpu(holds)

    def free_of(gpu: GpuState) -> GpuState:
        core, memory_mib = peak(taken[gpu.uuid], begin, end, booking=True) if gpu.uuid in taken else (0, 0)
        # Claims that are there now have gone by then, or will have to share the GPU.
        left = max(0, WHOLE - core), max(0, gpu.memory_mib - memory_mib)
        return replace(gpu, core_free=left[0], memory_free_mib=left[1], labels=())

    return [free_of(gpu) for gpu in gpus]


def book(gpus: Iterable[GpuState], holds: Iterable[Hold], request: Request, begin: int, end: int) -> Placed | Refused:
    """Return the GPUs that would carry the request through the window, chosen by the core that places claims."""
    return place(free_throughout(gpus, holds, begin, end), request)


def obstacles(
    gpus: Iterable[GpuState], holds: Iterable[Hold], request: Request, begin: int, end: int
) -> list[Obstacle]:
    """Return the holders of GPUs that lack room in the window and would fit if they were free; first ends first."""
    taken, until, count = by_gpu(holds), dict[tuple[str, str, str], int](), defaultdict[tuple[str, str, str], int](int)
    for gpu in free_throughout(gpus, holds, begin, end):
        lacks = gpu.core_free < request.core_request or gpu.memory_free_mib < request.memory_mib
        if not lacks or not gpu.could_carry(request):
            continue
        own = [hold for hold in taken[gpu.uuid] if hold.begin_us < end and hold.end_us > begin]
        standing = [hold for hold in own if not hold.yields and hold.within is None]
        for key in {(hold.kind, hold.holder, hold.tenant) for hold in standing}:
            count[key] += 1
        for hold in standing:
            key = (hold.kind, hold.holder, hold.tenant)
            until[key] = max(until.get(key, begin), hold.end_us)
    found = [Obstacle(*key, gpus, None if until[key] >= FOREVER else until[key]) for key, gpus in count.items()]
    return sorted(found, key=lambda item: (item.until_us or FOREVER, item.kind, item.holder))


def windows(
    gpus: Sequence[GpuState], holds: Iterable[Hold], request: Request, *, length: int, after: int, count: int
) -> list[Window]:
    """Return the earliest windows of this length that begin at or after a moment, one for each beginning.

    Room grows only at the end of a hold, so no window begins earlier than `after` or one of those moments.
    """
    taken = by_gpu(holds)
    by_node: dict[str, list[GpuState]] = defaultdict(list)
    for gpu in gpus:
        by_node[gpu.node].append(gpu)
    found: dict[int, Window] = {}
    for node in by_node.values():
        own = [hold for gpu in node for hold in taken.get(gpu.uuid, ())]
        for window in islice(_of_node(node, own, request, length, after), count):
            found.setdefault(window.begin_us, window)
    return [found[begin] for begin in sorted(found)[:count]]


def _of_node(
    node: Sequence[GpuState], holds: Sequence[Hold], request: Request, length: int, after: int
) -> Iterator[Window]:
    """Yield a node's windows: several GPUs come from one node, so each node is asked by itself."""
    for begin in sorted({after, *(hold.end_us for hold in holds if after < hold.end_us < FOREVER)}):
        answer = book(node, holds, request, begin, begin + length)
        if isinstance(answer, Placed):
            yield Window(begin, begin + length, answer.gpus)


def withheld(holds: Iterable[Hold], now: int, until: int) -> dict[str, Room]:
    """Return the room withheld from a claim that would run in [now, until), of what is free now, by GPU.

    GPUs without any are left out. `holds` are all holds of the GPUs that are reserved at some time: room that a claim
    gives back before a reservation begins counts once only.
    """
    answer: dict[str, Room] = {}
    for gpu, own in by_gpu(holds).items():
        if not any(hold.kind == RESERVATION and hold.begin_us < until and hold.end_us > now for hold in own):
            continue
        core, memory_mib = peak(own, now, until)
        there = [hold for hold in own if hold.kind != RESERVATION and hold.begin_us <= now < hold.end_us]
        room = (
            max(0, core - sum(hold.core for hold in there)),
            max(0, memory_mib - sum(hold.memory_mib for hold in there)),
        )
        if any(room):
            answer[gpu] = room
    return answer


def room_within(gpus: Iterable[GpuState], holds: Iterable[Hold], reservation: str) -> list[GpuState]:
    """Return the reservation's GPUs with what its claims leave of its share of each, as far as it is free now."""
    share = {hold.gpu: hold for hold in holds if hold.kind == RESERVATION and hold.holder == reservation}
    used: dict[str, Room] = defaultdict(lambda: (0, 0))
    for hold in holds:
        if hold.within == reservation:
            core, memory_mib = used[hold.gpu]
            used[hold.gpu] = core + hold.core, memory_mib + hold.memory_mib
    return [
        replace(
            gpu,
            core_free=min(gpu.core_free, share[gpu.uuid].core - used[gpu.uuid][0]),
            memory_free_mib=min(gpu.memory_free_mib, share[gpu.uuid].memory_mib - used[gpu.uuid][1]),
        )
        for gpu in gpus
        if gpu.uuid in share
    ]


def overfull(holds: Iterable[Hold], memory_mib: Mapping[str, int], begin: int, end: int) -> list[str]:
    """Return the GPUs (by uuid, with their memory) that are promised beyond what they have within the window."""
    taken = by_gpu(holds)
    peaks = {gpu: peak(taken[gpu], begin, end) for gpu in sorted(memory_mib) if gpu in taken}
    return [gpu for gpu, (core, memory) in peaks.items() if core > WHOLE or memory > memory_mib[gpu]]


def to_yield(holds: Sequence[Hold], memory_mib: Mapping[str, int], begin: int, end: int) -> set[str]:
    """Return the borrowers that must go so that every GPU has room for what is reserved in the window.

    `holds` come in the order in which borrowers are to stay: the last ones go first, and none that is not in the way.
    """
    gone: set[str] = set()
    for gpu, own in sorted(by_gpu(holds).items()):
        core, memory = peak(own, begin, end, booking=True)
        for hold in own:
            if not hold.yields or hold.holder in gone:
                continue
            if core + hold.core > WHOLE or memory + hold.memory_mib > memory_mib[gpu]:
                gone.add(hold.holder)
            else:
                core, memory = core + hold.core, memory + hold.memory_mib
    return gone


def profile(holds: Iterable[Hold], begin: int, end: int) -> list[tuple[int, int, int, int]]:
    """Return the use of one GPU over time: (from, to, core, memory_mib), in order, equal neighbours joined."""
    inside = [hold for hold in holds if hold.begin_us < end and hold.end_us > begin]
    edges = {moment for hold in inside for moment in (hold.begin_us, hold.end_us) if begin < moment < end}
    steps: list[tuple[int, int, int, int]] = []
    for start, stop in pairwise(sorted({begin, end, *edges})):
        core, memory_mib = _sum(inside, start, booking=False)
        same = bool(steps) and steps[-1][2:] == (core, memory_mib)
        steps.append((steps.pop()[0] if same else start, stop, core, memory_mib))
    return steps
