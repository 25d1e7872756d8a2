"""Rotation: which claims leave their GPUs so that others use them, and when. Pure.

Claims of which not all fit at once share GPUs by time: those that are out are suspended. The claims that wait are
considered in order: higher priority first, then those that were served less, then those that have waited longer. For
each, this module looks for claims whose slice is over and whose room is enough. A slice lasts `slice_seconds`, or
longer, so that a swap takes a tenth of it at most. A claim gives way to its equals when it was served as much as they
were, to claims of higher priority when its slice is over, and to those of lower priority never.

Times are in seconds on one clock. What a claim was *served* is in GPU-seconds: its share of a GPU (the larger one of
core and memory) on each of its GPUs, for as long as its programs could run.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

# A swap takes no more than one part in this many of the slice before it.
SLICES_OF_A_SWAP = 10
# Until it was measured: a fixed time, and MiB per second (on an H100 60 GiB take 30 to 47 s out, and 13 to 15 s back).
FIXED_SECONDS, OUT_MIB_PER_SECOND, IN_MIB_PER_SECOND = 0.5, 1536, 4096
WHOLE_CORE = 100
NEVER = math.inf


@dataclass(frozen=True, slots=True)
class SharedGpu:
    """A GPU of the pool: its capacity, what is free, and what all claims on it ask for, in or out.

    `busy`: a claim of it is on its way out or in; nothing is decided about it. `kept_for`: the claim for which its room
    is kept. `group`: those between which claims move, whose admitted claims are counted together; empty: it is alone.
    """

    key: str
    node: str
    memory_mib: int
    core_free: int
    memory_free_mib: int
    core_admitted: int
    memory_admitted_mib: int
    busy: bool = False
    kept_for: str | None = None
    group: str = ""


@dataclass(frozen=True, slots=True)
class Member:
    """A claim: its share of each of its GPUs, and its slice.

    `gpus`: those that it has, in or out; empty if no round has placed it. `allowed`: those on which it may come in; one
    that is out comes in on its own, too. `served`: None if it did not take part yet. `since`: the time since when its
    programs run, or since when it waits. `draws`: the budgets of host memory (of its node, of its tenant) from which it
    takes what it saves. `stays`: it cannot go out, or must not. `moved_mib`: the memory that its programs use on all
    GPUs, or that is saved; None: not known, so its limits count. `out_seconds`, `in_seconds`: how long it took to go
    out and in; None: not measured.
    """

    key: str
    core: int
    memory_mib: int
    gpu_count: int = 1
    gpus: tuple[str, ...] = ()
    allowed: frozenset[str] = frozenset()
    priority: int = 0
    served: float | None = None
    since: float = 0
    draws: tuple[str, ...] = ()
    stays: bool = False
    moved_mib: int | None = None
    out_seconds: float | None = None
    in_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Rules:
    """The pool's settings."""

    oversubscribe: int
    slice_seconds: float


@dataclass(frozen=True, slots=True)
class Swap:
    """Claims that go out, and the one that then comes in on these GPUs. `at`: when, which may be later than now."""

    out: tuple[str, ...]
    into: str
    gpus: tuple[str, ...]
    at: float
    # What the newcomer, and those that it is the first to share with, begin with.
    served: float


@dataclass(slots=True)
class _Board:
    """The GPUs and budgets while swaps are planned: what one swap uses is not there for the next."""

    rules: Rules
    now: float
    gpus: dict[str, SharedGpu]
    inside: Mapping[str, Sequence[Member]]
    out: Mapping[str, Sequence[Member]]
    budgets: dict[str, int]
    taken: set[str] = field(default_factory=set)
    groups: dict[str, list[SharedGpu]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for gpu in self.gpus.values():
            self.groups.setdefault(gpu.group, []).append(gpu)

    def is_open(self, key: str, one: Member) -> bool:
        """Return True if the GPU may be decided about for this claim."""
        gpu = self.gpus.get(key)
        return gpu is not None and not gpu.busy and key not in self.taken and gpu.kept_for in (None, one.key)


def reach(member: Member) -> frozenset[str]:
    """Return the GPUs on which the claim may come in."""
    return member.allowed.union(member.gpus)


def seconds_out(member: Member) -> float:
    """Return the time that the claim's programs need to leave their GPUs: as measured, or by their memory."""
    if member.out_seconds is not None:
        return member.out_seconds
    return FIXED_SECONDS + _moved_mib(member) / OUT_MIB_PER_SECOND


def seconds_in(member: Member) -> float:
    """Return the time that the claim's programs need to come back: as measured, or by their memory."""
    if member.in_seconds is not None:
        return member.in_seconds
    return FIXED_SECONDS + _moved_mib(member) / IN_MIB_PER_SECOND


def _moved_mib(member: Member) -> int:
    return member.memory_mib * member.gpu_count if member.moved_mib is None else member.moved_mib


def share(member: Member, gpus: Mapping[str, SharedGpu]) -> float:
    """Return how much of GPUs the claim has while it is in: 2.0 is two whole ones."""
    keys = [key for key in member.gpus if key in gpus]
    return sum(max(member.core / WHOLE_CORE, member.memory_mib / gpus[key].memory_mib) for key in keys)


def slice_length(out: Iterable[Member], into: Member, rules: Rules) -> float:
    """Return how long a slice lasts before this swap: so long that the swap takes a tenth of it at most."""
    swap = sum(map(seconds_out, out)) + seconds_in(into)
    return max(rules.slice_seconds, SLICES_OF_A_SWAP * swap)


@dataclass(frozen=True, slots=True)
class Scene:
    """A pool at one moment: the claims that are in, and those that wait, out or new.

    `budgets`: what is left of host memory; where there is no budget, nothing is limited.
    """

    gpus: Sequence[SharedGpu]
    inside: Sequence[Member]
    waiting: Sequence[Member]
    budgets: Mapping[str, int]
    now: float


def plan(rules: Rules, scene: Scene) -> list[Swap]:
    """Return the next swap of each GPU that has one: due (`at` is not after now), or to come.

    No two swaps are about the same GPU, and those that are due can be made together.
    """
    inside = scene.inside
    gpus = {gpu.key: gpu for gpu in scene.gpus}
    out = _by_gpu((one, reach(one)) for one in scene.waiting if one.gpus)
    there = _by_gpu((one, one.gpus) for one in inside)
    board = _Board(rules, scene.now, gpus, there, out, dict(scene.budgets))
    found = []
    for one in in_order(scene.waiting, beginning([*inside, *scene.waiting])):
        swap = _swap_for(one, board)
        if swap is not None:
            found.append(swap)
            board.taken.update(swap.gpus)
            if swap.at <= scene.now:
                _draw(board.budgets, (victim for victim in inside if victim.key in swap.out))
    return found


def in_order(waiting: Iterable[Member], least: float = 0.0) -> list[Member]:
    """Return the claims that wait in the order in which they come in, as far as they want the same GPUs.

    `least`: what those begin with that take no part yet.
    """
    return sorted(waiting, key=lambda one: _rank(one, least))


def _rank(one: Member, least: float) -> tuple[float, ...]:
    return -one.priority, least if one.served is None else one.served, one.since


def beginning(members: Iterable[Member]) -> float:
    """Return what a newcomer among these begins with: their least, so that it keeps none of them out to catch up."""
    return min((one.served for one in members if one.served is not None), default=0.0)


def _by_gpu(members: Iterable[tuple[Member, Iterable[str]]]) -> dict[str, list[Member]]:
    found: dict[str, list[Member]] = {}
    for one, keys in members:
        for key in keys:
            found.setdefault(key, []).append(one)
    return found


def _swap_for(one: Member, board: _Board) -> Swap | None:
    """Return the swap that brings the claim in, the soonest one where it may choose its GPUs; None: there is none.

    A newcomer for which there is room needs none where nobody is out: a scheduling round places it.
    """
    found = [_make_room(one, choice, board) for choice in (_returns if one.gpus else _choices)(one, board)]
    swaps = [swap for swap in found if swap is not None]
    if not one.gpus and any(not swap.out and not any(board.out.get(key) for key in swap.gpus) for swap in swaps):
        return None

    def rank(swap: Swap) -> tuple[float, bool, int, float]:
        return max(swap.at, board.now), swap.gpus != one.gpus, len(swap.out), swap.at

    return min(swaps, key=rank, default=None)


def _returns(one: Member, board: _Board) -> Iterable[tuple[str, ...]]:
    """Yield GPUs on which a claim that is out may come in: its own, and others, which were counted for it before.

    Of several GPUs those are chosen that can be had first, one by one.
    """
    if all(board.is_open(key, one) for key in one.gpus):
        yield one.gpus
    others = [key for key in sorted(reach(one)) if board.is_open(key, one)]
    if one.gpu_count == 1:
        yield from ((key,) for key in others if key not in one.gpus)
    elif len(others) > one.gpu_count:
        alone = ((key, _make_room(one, (key,), board)) for key in others)
        soonest = sorted((max(swap.at, board.now), key not in one.gpus, key) for key, swap in alone if swap)
        if len(soonest) >= one.gpu_count:
            yield tuple(key for _, _, key in soonest[: one.gpu_count])


def _choices(one: Member, board: _Board) -> Iterable[tuple[str, ...]]:
    """Yield GPUs of one node that the newcomer may have: admitting it keeps all of them within `oversubscribe`.

    Of each node those that are asked for least, and where one is enough, each.
    """
    by_node: dict[str, list[SharedGpu]] = {}
    for key in sorted(one.allowed):
        if board.is_open(key, one) and _admits(board.gpus[key], one, board):
            by_node.setdefault(board.gpus[key].node, []).append(board.gpus[key])
    for node in sorted(by_node):
        there = sorted(by_node[node], key=lambda gpu: (gpu.core_admitted, gpu.memory_admitted_mib, gpu.key))
        if one.gpu_count == 1:
            yield from ((gpu.key,) for gpu in there)
        elif len(there) >= one.gpu_count:
            yield tuple(gpu.key for gpu in there[: one.gpu_count])


def _admits(gpu: SharedGpu, one: Member, board: _Board) -> bool:
    together, times = (board.groups[gpu.group], one.gpu_count) if gpu.group else ([gpu], 1)
    core = sum(item.core_admitted for item in together) + times * one.core
    memory_mib = sum(item.memory_admitted_mib for item in together) + times * one.memory_mib
    whole = board.rules.oversubscribe * sum(item.memory_mib for item in together)
    return core <= board.rules.oversubscribe * WHOLE_CORE * len(together) and memory_mib <= whole


def _make_room(one: Member, gpus: tuple[str, ...], board: _Board) -> Swap | None:
    """Return the soonest swap found that gives the claim these GPUs; None if the claims there cannot make the room."""
    served = one.served
    if served is None:
        waiting = [member for key in gpus for member in board.out.get(key, ())]
        served = beginning([*waiting, *(member for key in gpus for member in board.inside.get(key, ()))])
        if any(_rank(member, served) < _rank(one, served) for member in waiting if member.key != one.key):
            return None
    victims = {member.key: member for key in gpus for member in board.inside.get(key, ())}
    over = {key: _slice_over(victim, one, served, board) for key, victim in victims.items()}
    out: list[Member] = []
    left = dict(board.budgets)
    for victim in sorted(victims.values(), key=lambda member: (over[member.key], -(member.served or 0), member.key)):
        if _fits(one, gpus, out, board):
            break
        is_open = all(board.is_open(key, one) for key in victim.gpus)
        lacks = any(left[draw] < victim.memory_mib * victim.gpu_count for draw in victim.draws if draw in left)
        if over[victim.key] == NEVER or not is_open or lacks:
            continue
        out.append(victim)
        _draw(left, [victim])
    if not _fits(one, gpus, out, board):
        return None
    for victim in reversed(out[:]):
        rest = [member for member in out if member is not victim]
        out = rest if _fits(one, gpus, rest, board) else out
    length = slice_length(out, one, board.rules)
    at = max((max(over[victim.key], victim.since + length) for victim in out), default=board.now)
    return Swap(tuple(victim.key for victim in out), one.key, gpus, at, served)


def _slice_over(victim: Member, one: Member, served: float, board: _Board) -> float:
    """Return the time from which the claim gives way to the one that waits; NEVER: it does not."""
    if victim.stays or victim.priority > one.priority:
        return NEVER
    over = victim.since + slice_length([victim], one, board.rules)
    if victim.priority == one.priority:
        # What it takes part with from now on, if it did not yet, is what the other one begins with.
        behind = served - (served if victim.served is None else victim.served)
        rate = share(victim, board.gpus)
        over = max(over, board.now + behind / rate if behind > 0 and rate else over)
    return over


def _fits(one: Member, gpus: Iterable[str], out: Sequence[Member], board: _Board) -> bool:
    for key in gpus:
        gpu = board.gpus[key]
        leaving = [member for member in out if key in member.gpus]
        if gpu.core_free + sum(member.core for member in leaving) < one.core:
            return False
        if gpu.memory_free_mib + sum(member.memory_mib for member in leaving) < one.memory_mib:
            return False
    return True


def _draw(budgets: dict[str, int], members: Iterable[Member]) -> None:
    """Take what these claims save from the budgets of host memory; who has none is not limited."""
    for member in members:
        for draw in member.draws:
            if draw in budgets:
                budgets[draw] -= member.memory_mib * member.gpu_count
