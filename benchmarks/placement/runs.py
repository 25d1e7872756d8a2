"""One run of the protocol: a policy, a list, a seed; nothing leaves, is retried or is moved.

`fgd` knows the whole list beforehand, as its authors' does; `gpucloud` and `power` learn from arrivals.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

from apps.scheduling.core.fleet import Fleet
from apps.scheduling.core.values import GpuState, NodeState, Placed, Request
from benchmarks.placement.power import Meter
from benchmarks.placement.room import Room
from benchmarks.placement.trace import WHOLE, Ask, Draw, Machine

POLICIES = ("random", "best-fit", "fgd", "gpucloud", "power")

Place = tuple[int, Sequence[int]] | None


class Cell(NamedTuple):
    """The cluster when so much was requested: percent of all GPUs allocated, and estimated watts."""

    percent: float
    watts: float


def allocated(draw: Draw, asks: Sequence[Ask], policy: str) -> dict[int, Cell]:
    """Return the percent of all GPUs allocated and the power, by percent of all GPUs requested.

    A value is the mean of the arrivals that round to its percent.
    """
    order, arriving = draw
    room, meter = Room(order), Meter(order)
    place = room.best_fit if policy == "best-fit" else _engine(order, asks, policy)
    everything = sum(machine.gpus for machine in order) * WHOLE
    asked = used = 0
    sums: dict[int, list[Cell]] = {}
    for ask in arriving:
        asked += ask.milli
        placed = place(ask)
        if placed is None:
            room.refuse(ask)
        else:
            room.take(ask, *placed)
            meter.take(ask, *placed)
            used += ask.milli
        cell = Cell(round(100 * used / everything, 2), meter.watts)
        sums.setdefault(round(100 * asked / everything), []).append(cell)
    return {
        arrived: Cell(*(sum(part) / len(cells) for part in zip(*cells, strict=True))) for arrived, cells in sums.items()
    }


def _engine(order: Sequence[Machine], asks: Sequence[Ask], policy: str) -> Callable[[Ask], Place]:
    """Return the project's own placement. Nodes are named by their place in the run's order, which breaks ties."""
    nodes, gpus, where = [], [], {}
    for number, machine in enumerate(order):
        name = f"node-{number:05}"
        cpu, ram = machine.cpu_milli, machine.ram_mib
        nodes.append(NodeState(name, cpu_milli_free=cpu, ram_mib_free=ram, cpu_milli=cpu))
        where[name] = number, 0
        for index in range(machine.gpus):
            uuid = f"{name}-{index}"
            gpus.append(GpuState(uuid, name, index, machine.model, 0, WHOLE, 0))
            where[uuid] = number, index
    requests = {ask: _request(ask) for ask in asks}
    known = Counter(asks) if policy == "fgd" else {}
    fleet = Fleet(gpus, nodes, policy=policy, whole=WHOLE, mix=[(requests[ask], n) for ask, n in known.items()])
    arrivals = iter(range(1 << 62))

    def place(ask: Ask) -> Place:
        request = requests[ask]
        if policy == "random":
            request = _request(ask, key=str(next(arrivals)))
        if policy in ("gpucloud", "power"):
            fleet.learn(request)
        answer = fleet.place(request)
        if not isinstance(answer, Placed):
            return None
        fleet.take(answer.gpus, request, node=answer.node)
        if not answer.gpus:
            return where[answer.node][0], []
        return where[answer.gpus[0]][0], [where[uuid][1] for uuid in answer.gpus]

    return place


def _request(ask: Ask, key: str = "") -> Request:
    core = ask.gpu_milli if ask.gpus else 0
    models = ask.models if ask.gpus and ask.models else None
    return Request(ask.gpus, core, 0, models, cpu_milli=ask.cpu_milli, ram_mib=ask.ram_mib, key=key)
