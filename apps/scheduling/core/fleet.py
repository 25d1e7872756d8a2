"""A pool's GPUs in memory: asked for a place, told what was taken, given back or changed."""

from bisect import insort
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from apps.scheduling.core.placement.plain import decide
from apps.scheduling.core.placement.policies import POLICIES, Node
from apps.scheduling.core.values import GpuState, Label, NodeState, Placed, Refused, Request

BACKENDS = ("auto", "python")


class Fleet:
    """The GPUs and nodes of one pool, and the pool's policy.

    `whole` is the core of a whole GPU. A GPU whose node was never told of is on a node without labels, links or limits.
    """

    def __init__(
        self,
        gpus: Iterable[GpuState],
        nodes: Iterable[NodeState] = (),
        *,
        policy: str = "gpucloud",
        whole: int = 100,
        backend: str = "auto",
    ) -> None:
        if backend not in BACKENDS:
            raise ValueError(f"no such back end: {backend}")
        self._policy, self._whole = POLICIES[policy], whole
        self._gpus: dict[str, GpuState] = {}
        self._nodes = {node.name: node for node in nodes}
        self._on: dict[str, list[tuple[int, str]]] = {}
        for gpu in gpus:
            self.set_gpu(gpu)

    def place(self, request: Request, *, held: Mapping[str, tuple[int, int]] | None = None) -> Placed | Refused:
        """Choose GPUs for the request, or say why none will do; changes nothing.

        `held` is what the request may not count on, by GPU: (core, MiB), for reservations.
        """
        return decide(self._picture(), request, self._policy, held or {}, self._whole)

    def take(self, gpus: Sequence[str], request: Request) -> None:
        """The request is on these GPUs now."""
        self._move(gpus, request, 1)

    def give_back(self, gpus: Sequence[str], request: Request) -> None:
        """The request is on these GPUs no longer."""
        self._move(gpus, request, -1)

    def set_gpu(self, state: GpuState) -> None:
        """A new GPU, or another state of a known one."""
        known = self._gpus.get(state.uuid)
        if known is not None and (known.node, known.index) != (state.node, state.index):
            self.remove_gpu(state.uuid)
            known = None
        self._gpus[state.uuid] = state
        if known is None:
            insort(self._on.setdefault(state.node, []), (state.index, state.uuid))

    def remove_gpu(self, uuid: str) -> None:
        """The GPU is no longer the pool's; nothing where it is not known."""
        gone = self._gpus.pop(uuid, None)
        if gone is None:
            return
        self._on[gone.node].remove((gone.index, uuid))
        if not self._on[gone.node]:
            del self._on[gone.node]

    def set_node(self, state: NodeState) -> None:
        """A new node, or another state of a known one."""
        self._nodes[state.name] = state

    def gpus(self) -> Sequence[GpuState]:
        """The GPUs as they stand, by node, index and uuid."""
        return [self._gpus[uuid] for name in sorted(self._on) for _, uuid in self._on[name]]

    def nodes(self) -> Sequence[NodeState]:
        """The nodes as they stand, by name."""
        return [self._nodes[name] for name in sorted(self._nodes)]

    def learn(self, request: Request) -> None:
        """One more arrival, for the mix of typical requests."""

    def _picture(self) -> Iterable[Node]:
        for name in sorted(self._on):
            gpus = tuple(self._gpus[uuid] for _, uuid in self._on[name])
            yield Node(self._nodes.get(name) or NodeState(name), gpus)

    def _move(self, gpus: Sequence[str], request: Request, sign: int) -> None:
        for uuid in gpus:
            gpu = self._gpus[uuid]
            labels = tuple(sorted(gpu.labels + request.labels)) if sign > 0 else _without(gpu.labels, request.labels)
            self._gpus[uuid] = replace(
                gpu,
                core_free=gpu.core_free - sign * request.core_request,
                memory_free_mib=gpu.memory_free_mib - sign * request.memory_mib,
                labels=labels,
            )
        for name in {self._gpus[uuid].node for uuid in gpus}:
            if name in self._nodes:
                self._nodes[name] = _moved(self._nodes[name], request, sign)


def _moved(node: NodeState, request: Request, sign: int) -> NodeState:
    cpu, ram = node.cpu_milli_free, node.ram_mib_free
    return replace(
        node,
        cpu_milli_free=cpu if cpu is None else cpu - sign * request.cpu_milli,
        ram_mib_free=ram if ram is None else ram - sign * request.ram_mib,
    )


def _without(labels: tuple[Label, ...], gone: Iterable[Label]) -> tuple[Label, ...]:
    left = list(labels)
    for label in gone:
        left.remove(label)
    return tuple(left)
