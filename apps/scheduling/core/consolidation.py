"""Consolidation: claims that could move, and GPUs that this would leave whole or free enough for a waiting claim.

Only proposals. A move takes a claim's share from its GPUs to others; it is proposed if the fleet's own `place` puts the
claim there, so labels, topology, models and selectors hold as for a new claim, and it never goes to a GPU that is to be
left or that is wholly free: that would gain nothing. Each plan is tried on the fleet and undone.

The plan found is cheap, not always cheapest: GPUs are tried in the order of the cost of leaving them, and the claims
moved from a GPU are those that free enough with the fewest and the smallest moves.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from apps.scheduling.core.fleet import Fleet
from apps.scheduling.core.values import NOTHING, GpuState, Held, Placed, Request

WHOLE = 100
# More than any plan costs.
IMPOSSIBLE = 1 << 60


@dataclass(frozen=True, slots=True)
class PlacedClaim:
    """A placed claim: its GPUs, and the memory (MiB, on each of them) that moving it would copy.

    `expected_percent` of a GPU is what it will probably use in the next minutes: it stands still while it moves. Claims
    that may not be moved use the fleet's GPUs all the same, and make them impossible to leave.
    """

    claim: str
    request: Request
    gpus: tuple[str, ...]
    memory_mib: int
    expected_percent: float = 100.0

    @property
    def cost_mib(self) -> int:
        """The memory to be copied, over all of its GPUs."""
        return self.memory_mib * len(self.gpus)

    @property
    def loss(self) -> float:
        """The cost of moving it, to compare: the memory to copy; a tenth of it for a claim that rests meanwhile."""
        return self.cost_mib * (0.1 + 0.9 * self.expected_percent / 100)


@dataclass(frozen=True, slots=True)
class Move:
    """A claim from these GPUs to those. `state` is the state of the move: nothing here applies one."""

    claim: str
    from_gpus: tuple[str, ...]
    to_gpus: tuple[str, ...]
    cost_mib: int
    state: Literal["proposed"] = "proposed"


@dataclass(frozen=True, slots=True)
class Plan:
    """Moves, in their order, and the GPUs that are wholly free after them and were not before."""

    moves: tuple[Move, ...]
    frees: tuple[str, ...]

    @property
    def cost_mib(self) -> int:
        """The memory to be copied in all."""
        return sum(move.cost_mib for move in self.moves)


@dataclass(frozen=True, slots=True)
class MoveBounds:
    """The most that one plan may take, and the number of places tried for it."""

    most_moves: int = 4
    most_memory_mib: int = 256 * 1024
    most_tried: int = 64


def make_room(
    fleet: Fleet, sitting: Iterable[PlacedClaim], request: Request, bounds: MoveBounds, *, held: Held = NOTHING
) -> Plan | None:
    """Return the cheapest plan found after which the request fits; None if there is none, or if it fits as it is.

    `held` is withheld from everybody, by GPU: (core, MiB), for reservations.
    """
    table = _Table(fleet, sitting, held)
    if table.fits(request):
        return None
    plans = (_plan_emptying(table, targets, request, bounds) for targets in _targets(table, request, bounds))
    return min((plan for plan in plans if plan), key=_preference, default=None)


def free_gpus(fleet: Fleet, sitting: Iterable[PlacedClaim], bounds: MoveBounds, *, held: Held = NOTHING) -> Plan | None:
    """Leave as many GPUs wholly free as the bounds allow, the cheapest to leave first; None if none can be left."""
    table, moves, frees = _Table(fleet, sitting, held), list[Move](), list[str]()
    whole = Request(1, WHOLE, 1)
    for gpu in table.by_cost(fleet.gpus())[: bounds.most_tried]:
        left = replace(
            bounds,
            most_moves=bounds.most_moves - len(moves),
            most_memory_mib=bounds.most_memory_mib - sum(move.cost_mib for move in moves),
        )
        plan = _plan_emptying(table, [gpu], whole, left, keep=True)
        if plan:
            moves += plan.moves
            frees.append(gpu.uuid)
    return Plan(tuple(moves), tuple(frees)) if moves else None


class _Table:
    """The placed claims on a fleet; moved for a trial, and back."""

    def __init__(self, fleet: Fleet, sitting: Iterable[PlacedClaim], held: Held) -> None:
        self.fleet, self.held = fleet, held
        self.on: dict[str, list[PlacedClaim]] = defaultdict(list)
        # GPUs to which something was moved for good: `on` no longer knows what they carry.
        self.received: set[str] = set()
        for item in sorted(sitting, key=lambda item: item.claim):
            for uuid in item.gpus:
                self.on[uuid].append(item)

    def fits(self, request: Request) -> bool:
        """Return True if there is a place for the request now."""
        return isinstance(self.fleet.place(request, held=self.held), Placed)

    def by_cost(self, gpus: Iterable[GpuState]) -> list[GpuState]:
        """Return the GPUs in use that could be left: the fewest claims and the least memory first."""
        could = [gpu for gpu in gpus if gpu.schedulable and not _is_whole(gpu) and self._all_known(gpu)]
        return sorted(could, key=lambda gpu: (*self._cost(gpu), gpu.node, gpu.index, gpu.uuid))

    def _cost(self, gpu: GpuState) -> tuple[int, float]:
        return len(self.on[gpu.uuid]), sum(item.loss for item in self.on[gpu.uuid])

    def _all_known(self, gpu: GpuState) -> bool:
        """Return True if all that the GPU carries may be moved."""
        core = sum(item.request.core_request for item in self.on[gpu.uuid])
        memory = sum(item.request.memory_mib for item in self.on[gpu.uuid])
        core, memory = core - gpu.core_over, memory - gpu.memory_over_mib
        return gpu.core_free + core == WHOLE and gpu.memory_free_mib + memory == gpu.memory_mib

    def undo(self, done: Sequence[tuple[PlacedClaim, Move]]) -> None:
        """Move everything back, the last first."""
        for item, move in reversed(done):
            self.fleet.give_back(move.to_gpus, item.request)
            self.fleet.take(move.from_gpus, item.request)

    def move(self, item: PlacedClaim, avoid: Iterable[str]) -> Move | None:
        """Move the claim to where the fleet places it, but not to `avoid` nor to a GPU that is wholly free."""
        self.fleet.give_back(item.gpus, item.request)
        never = {*avoid, *item.gpus}
        gone = [gpu for gpu in self.fleet.gpus() if gpu.uuid in never or _is_whole(gpu)]
        held = {gpu.uuid: (WHOLE, gpu.memory_mib) for gpu in gone}
        answer = self.fleet.place(item.request, held={**self.held, **held})
        if not isinstance(answer, Placed):
            self.fleet.take(item.gpus, item.request)
            return None
        self.fleet.take(answer.gpus, item.request)
        return Move(item.claim, item.gpus, answer.gpus, item.cost_mib)


def _is_whole(gpu: GpuState) -> bool:
    return gpu.core_free == WHOLE and gpu.memory_free_mib == gpu.memory_mib


def _targets(table: _Table, request: Request, bounds: MoveBounds) -> Iterator[list[GpuState]]:
    """Return sets of GPUs of one node that could carry the request once they were left, cheap ones first."""
    by_node: dict[str, list[GpuState]] = defaultdict(list)
    wanted = set(request.node_selector)
    selected = {node.name for node in table.fleet.nodes() if wanted <= set(node.labels)}
    for gpu in table.fleet.gpus():
        if gpu.could_carry(request) and (not wanted or gpu.node in selected):
            by_node[gpu.node].append(gpu)
    sets = []
    for gpus in by_node.values():
        if len(gpus) >= request.gpu_count:
            chosen = sorted(gpus, key=lambda gpu: _missing(table, gpu, request))[: request.gpu_count]
            sets.append((sum(_missing(table, gpu, request)[0] for gpu in chosen), chosen))
            if request.gpu_count == 1:
                sets += [(_missing(table, gpu, request)[0], [gpu]) for gpu in gpus if gpu is not chosen[0]]
    sets = [item for item in sets if item[0] < IMPOSSIBLE]
    ordered = sorted(sets, key=lambda item: (item[0], [gpu.uuid for gpu in item[1]]))
    return iter([chosen for _, chosen in ordered[: bounds.most_tried]])


def _missing(table: _Table, gpu: GpuState, request: Request) -> tuple[int, str]:
    """Return the memory that would have to leave the GPU, at least, for the request to fit; by the chosen leavers."""
    leavers = _leavers(table.on[gpu.uuid], gpu, request)
    return (IMPOSSIBLE if leavers is None else sum(item.cost_mib for item in leavers), gpu.uuid)


def _leavers(sitting: Sequence[PlacedClaim], gpu: GpuState, request: Request) -> list[PlacedClaim] | None:
    """Return few claims whose leaving makes room on the GPU: one if one is enough, else the largest shares first."""
    # Room that is used twice must be given back first.
    core = request.core_request - gpu.core_free + gpu.core_over
    memory = request.memory_mib - gpu.memory_free_mib + gpu.memory_over_mib
    if core <= 0 and memory <= 0:
        return []
    alone = [item for item in sitting if item.request.core_request >= core and item.request.memory_mib >= memory]
    if alone:
        return [min(alone, key=lambda item: (item.loss, item.claim))]
    left: list[PlacedClaim] = []
    for item in sorted(sitting, key=lambda item: (-item.request.core_request, item.loss, item.claim)):
        if core <= 0 and memory <= 0:
            break
        left.append(item)
        core, memory = core - item.request.core_request, memory - item.request.memory_mib
    return left if core <= 0 and memory <= 0 else None


def _plan_emptying(
    table: _Table, targets: Sequence[GpuState], request: Request, bounds: MoveBounds, *, keep: bool = False
) -> Plan | None:
    """Return the plan that makes room for the request on these GPUs, tried; with `keep` its moves stay on the fleet."""
    leavers: dict[str, PlacedClaim] = {}
    for gpu in targets:
        asked = replace(request, memory_mib=gpu.memory_mib) if keep else request
        going = _leavers(table.on[gpu.uuid], gpu, asked)
        if going is None:
            return None
        leavers |= {item.claim: item for item in going}
    cost = sum(item.cost_mib for item in leavers.values())
    if not leavers or len(leavers) > bounds.most_moves or cost > bounds.most_memory_mib:
        return None
    if table.received & {uuid for item in leavers.values() for uuid in item.gpus}:
        return None
    done: list[tuple[PlacedClaim, Move]] = []
    for item in sorted(leavers.values(), key=lambda item: (-item.request.core_request, item.claim)):
        if (move := table.move(item, [gpu.uuid for gpu in targets])) is None:
            table.undo(done)
            return None
        done.append((item, move))
    moves = tuple(move for _, move in done)
    whole = {gpu.uuid for gpu in table.fleet.gpus() if _is_whole(gpu)}
    plan = Plan(moves, tuple(gpu.uuid for gpu in targets if gpu.uuid in whole and not _is_whole(gpu)))
    if keep:
        table.received.update(*(move.to_gpus for move in moves))
        return plan
    fits = table.fits(request)
    table.undo(done)
    return plan if fits else None


def _preference(plan: Plan) -> tuple[int, int, tuple[str, ...]]:
    return len(plan.moves), plan.cost_mib, tuple(move.claim for move in plan.moves)
