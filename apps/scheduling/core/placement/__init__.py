"""Placement: the GPUs that carry a request. Here for a fleet at one moment; `core.fleet` keeps one in memory."""

from collections.abc import Iterable
from dataclasses import replace

from apps.scheduling.core.placement import instances, topology
from apps.scheduling.core.placement.fragmentation import Prices
from apps.scheduling.core.placement.plain import decide
from apps.scheduling.core.placement.policies import Node
from apps.scheduling.core.values import MIG_MODE, GpuState, Held, NodeState, Placed, Reason, Refused, Request

WHOLE = 100


def place(
    fleet: Iterable[GpuState],
    request: Request,
    *,
    nodes: Iterable[NodeState] = (),
    policy: str = "binpack",
    held: Held | None = None,
) -> Placed | Refused:
    """Choose GPUs for the request, or return why none fits. Typical requests are not known here."""
    if request.profile is not None:
        gpus = sorted(fleet, key=lambda gpu: (gpu.node, gpu.index, gpu.uuid))
        divided = [gpu for gpu in gpus if gpu.mig is not None]
        states = {node.name: node for node in nodes}
        return instances.decide(divided, request, nodes=states, others=len(gpus) - len(divided), held=held or {})
    return decide(grouped(fleet, nodes), request, policy, Prices((), {}, WHOLE), held or {})


def never_fits(fleet: Iterable[GpuState], request: Request, *, nodes: Iterable[NodeState] = ()) -> tuple[Reason, ...]:
    """Return why the request would not fit even if every GPU were free and every node online; empty if it could."""
    free = [
        replace(
            gpu,
            core_free=WHOLE,
            memory_free_mib=gpu.memory_mib,
            schedulable=gpu.mig is None,
            unhealthy="" if gpu.mig is None else MIG_MODE,
            labels=(),
            mig=gpu.mig and gpu.mig._replace(used=0, ready=True),
        )
        for gpu in fleet
    ]
    # The CPU and RAM of an empty machine are not known.
    empty = [replace(node, cpu_milli_free=None, ram_mib_free=None) for node in nodes]
    answer = place(free, request, nodes=empty)
    return answer.reasons if isinstance(answer, Refused) else ()


def grouped(fleet: Iterable[GpuState], nodes: Iterable[NodeState]) -> list[Node]:
    """Return the nodes in the order of their names, with the GPUs of each by index and uuid."""
    states = {node.name: node for node in nodes}
    by_node: dict[str, list[GpuState]] = {}
    for gpu in sorted(fleet, key=lambda gpu: (gpu.node, gpu.index, gpu.uuid)):
        by_node.setdefault(gpu.node, []).append(gpu)
    return [machine(states.get(name) or NodeState(name), gpus) for name, gpus in by_node.items()]


def machine(state: NodeState, gpus: Iterable[GpuState]) -> Node:
    """Return a node with its GPUs, which come in order."""
    gpus = tuple(gpus)
    return Node(state, gpus, topology.matrix([gpu.uuid for gpu in gpus], state.links))
