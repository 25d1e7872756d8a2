"""A pool's GPUs in memory, asked for places and updated with what was taken, given back or changed.

The back ends give the same answer to the last bit: `python` reads the whole fleet each time and is the specification;
`c` keeps scores and rescores what changed. `auto` is `c` where the kernel is built.
"""

from bisect import insort
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING

from apps.scheduling.core.placement import WHOLE, backends, instances, machine
from apps.scheduling.core.placement.fragmentation import Prices
from apps.scheduling.core.placement.mix import Mix, Weights, most_popular
from apps.scheduling.core.placement.plain import decide
from apps.scheduling.core.placement.policies import POLICIES, Node
from apps.scheduling.core.placement.prices import Machine, model_prices
from apps.scheduling.core.values import SHARING_GROUP, GpuState, Held, Label, NodeState, Placed, Refused, Request

if TYPE_CHECKING:
    from apps.scheduling.core.placement.rows import Rows

# As published, FGD uses the most popular requests that make up this percentage of all.
POPULAR_PERCENT = 95
# The policies that use the mix.
LEARNING = ("gpucloud", "fgd", "power")
# Prices are renewed when a twentieth of all core was taken or given back since.
RENEWED = 20
# For most requests only core and memory matter.
_labels = attrgetter("affinity", "anti_affinity", "exclusion", "sharing_group", "profile")
UNLABELLED = (None, None, None, None, None)
_special = attrgetter("affinity", "anti_affinity", "exclusion", "sharing_group", "cpu_milli", "ram_mib")
ORDINARY = (None, None, None, None, 0, 0)
# More than any GPU has.
ALL_OF_IT = (1 << 30, 1 << 40)


class Fleet:
    """The GPUs and nodes of one pool, and the pool's policy.

    `whole` is the core of a whole GPU. `mix` are the typical requests known at the start, with counts. A GPU whose node
    was never set is on a node without labels, links or limits.
    """

    def __init__(
        self,
        gpus: Iterable[GpuState],
        nodes: Iterable[NodeState] = (),
        *,
        policy: str = "gpucloud",
        whole: int = WHOLE,
        backend: str = "auto",
        mix: Iterable[tuple[Request, int]] = (),
    ) -> None:
        if policy not in POLICIES:
            raise ValueError(f"no such policy: {policy}")
        self._policy, self._whole, self._mix = policy, whole, Mix(mix)
        self.backend = backends.resolve(backend)
        self._gpus: dict[str, GpuState] = {}
        self._nodes = {node.name: node for node in nodes}
        self._on: dict[str, list[tuple[int, str]]] = {}
        self._where: dict[Label, dict[str, int]] = {}
        self._prices: Prices | None = None
        self._machines: frozenset[Machine] | None = None
        # Core taken, less what was given back, since prices were made.
        self._drift = 0
        # While there are rows, their board has the free room of a GPU, and `_gpus` that of the time when they were
        # made.
        self._rows: Rows | None = None
        # GPUs that came with some room used twice: what is given back there is not all free.
        self._over: set[str] = set()
        # GPUs in MIG mode; and the first slices of the instances that were taken here, last taken last.
        self._divided: set[str] = set()
        self._starts: dict[str, dict[Request, list[int]]] = {}
        for gpu in gpus:
            self.set_gpu(gpu)

    def place(self, request: Request, *, held: Mapping[str, tuple[int, int]] | None = None) -> Placed | Refused:
        """Choose GPUs for the request, or return why none fits; changes nothing.

        `held` is withheld from the request, by GPU: (core, MiB).
        """
        if request.profile is not None:
            divided = [self._now(uuid) for uuid in self._divided]
            divided.sort(key=lambda gpu: (gpu.node, gpu.index, gpu.uuid))
            count = len(self._gpus) - len(divided)
            return instances.decide(divided, request, nodes=self._nodes, others=count, held=held or {})
        answer = self._decide(request, held)
        if (
            request.sharing_group is None
            or isinstance(answer, Refused)
            or not (others := self._others(answer, request))
        ):
            return answer
        apart = self._decide(request, {**(held or {}), **others})
        return apart if isinstance(apart, Placed) else answer

    def _decide(self, request: Request, held: Held | None) -> Placed | Refused:
        rows = self._rows if self._prices is not None and self._rows is not None else self._prepare_rows()
        if rows is None:
            return decide(self._as_nodes(), request, self._policy, self._get_prices(), held or {})
        return rows.decide(request, held or {}, self._where)

    def _others(self, answer: Placed, request: Request) -> Held:
        """Return the GPUs with claims of other sharing groups, all of each withheld; none if the answer has no such."""
        own = request.labels[-1]
        labels = chain.from_iterable(self._gpus[uuid].labels for uuid in answer.gpus)
        if not any(label.kind == own.kind and label != own for label in labels):
            return {}
        foreign = (on for label, on in self._where.items() if label.kind == own.kind and label != own)
        return dict.fromkeys(chain.from_iterable(foreign), ALL_OF_IT)

    def place_many(self, requests: Sequence[Request]) -> list[Placed | Refused]:
        """Place the requests one after the other, each as if those before it had been taken, and take them."""
        special = any(map(UNLABELLED.__ne__, map(_labels, requests)))
        if not requests or special or (rows := self._prepare_rows()) is None:
            return [self._place_and_take(request) for request in requests]
        answers = rows.place_many(requests)
        for request, answer in zip(requests, answers, strict=True):
            if isinstance(answer, Placed):
                self._drift += request.gpu_count * request.core_request
                if request.cpu_milli or request.ram_mib:
                    self._charge_nodes(answer.gpus, answer.node, request, 1)
        return answers

    def take(self, gpus: Sequence[str], request: Request, *, node: str = "") -> None:
        """Take the room of the request on these GPUs; without GPUs, on this node."""
        self._move(gpus, node, request, 1)

    def give_back(self, gpus: Sequence[str], request: Request, *, node: str = "") -> None:
        """Give back the room of the request."""
        self._move(gpus, node, request, -1)

    def give_back_many(self, gone: Iterable[tuple[Sequence[str], Request]]) -> None:
        """Give back the room of each request; the GPUs of each are of one node."""
        gone = list(gone)
        special = self._over | self._divided
        if self._rows is None or (special and any(special.intersection(gpus) for gpus, _ in gone)):
            for gpus, request in gone:
                self.give_back(gpus, request)
            return
        # Without GPUs and a node's name nothing is given back.
        gone = [move for move in gone if move[0]]
        self._drift -= sum(len(gpus) * request.core_request for gpus, request in gone)
        for gpus, request in gone if any(map(ORDINARY.__ne__, (_special(move[1]) for move in gone))) else ():
            self._beside(gpus, "", request, -1)
        self._rows.move_many(gone, -1)

    def set_gpu(self, state: GpuState) -> None:
        """Add a GPU, or replace the state of a known one."""
        known = self._gpus.get(state.uuid)
        if known is not None and (known.node, known.index, known.model) != (state.node, state.index, state.model):
            self.remove_gpu(state.uuid)
            known = None
        if known is None:
            self._settle()
            self._prices = self._machines = None
            insort(self._on.setdefault(state.node, []), (state.index, state.uuid))
        self._relabel(state.uuid, known.labels if known else (), state.labels)
        (self._over.add if state.core_over or state.memory_over_mib else self._over.discard)(state.uuid)
        (self._divided.add if state.mig is not None else self._divided.discard)(state.uuid)
        self._starts.pop(state.uuid, None)
        self._put(state)

    def _put(self, state: GpuState) -> None:
        self._gpus[state.uuid] = state
        if self._rows is not None:
            spot = self._rows.board.spot[state.uuid]
            self._rows.board.put(state, spot)
            self._rows.kernel.changed(spot[0])

    def remove_gpu(self, uuid: str) -> None:
        """Remove the GPU; do nothing if it is not known."""
        if uuid not in self._gpus:
            return
        self._settle()
        self._prices = self._machines = None
        self._over.discard(uuid)
        self._divided.discard(uuid)
        gone = self._gpus.pop(uuid)
        self._relabel(uuid, gone.labels, ())
        on = self._on[gone.node]
        on.remove((gone.index, uuid))
        if not on:
            del self._on[gone.node]

    def set_node(self, state: NodeState) -> None:
        """Add a node, or replace the state of a known one."""
        known = self._nodes.get(state.name) or NodeState(state.name)
        self._nodes[state.name] = state
        if known.cpu_milli != state.cpu_milli:
            self._machines = None
        if state.name not in self._on:
            return
        if (known.labels, known.links) != (state.labels, state.links):
            self._settle()
        elif self._rows is not None:
            self._rows.set_machine(state)

    def gpus(self) -> Sequence[GpuState]:
        """Return the GPUs as they stand, by node, index and uuid."""
        return [self._now(uuid) for name in sorted(self._on) for _, uuid in self._on[name]]

    def some_gpus(self, uuids: Iterable[str]) -> Sequence[GpuState]:
        """Return those of these GPUs that it has, as `gpus` does: without a look at all others."""
        known = [gpu for uuid in uuids if (gpu := self._gpus.get(uuid)) is not None]
        known.sort(key=lambda gpu: (gpu.node, gpu.index, gpu.uuid))
        return [self._now(gpu.uuid) for gpu in known]

    def nodes(self) -> Sequence[NodeState]:
        """Return the nodes as they stand, by name."""
        return [self._nodes[name] for name in sorted(self._nodes)]

    def learn(self, request: Request) -> None:
        """Count one more arrival, for the mix of typical requests for shares of GPUs."""
        if self._policy not in LEARNING or request.profile is not None:
            return
        drifted = abs(self._drift) * RENEWED > self._whole * len(self._gpus)
        if self._mix.learn(request) or drifted:
            self._prices = None

    def _prepare_rows(self) -> "Rows | None":
        """Return the rows as things are now; None if the plain back end answers."""
        if self.backend == "python" or not self._on:
            return None
        anew = self._rows is None or self._prices is None
        if self._rows is None:
            self._rows = backends.rows(list(self._as_nodes()), self._policy, self._whole)
        prices = self._get_prices()
        if self._rows is not None and anew and self._policy in LEARNING:
            self._rows.set_mix(prices)
        return self._rows

    def _get_prices(self) -> Prices:
        if self._prices is None:
            weights = self._weights()
            self._prices = Prices(weights, model_prices(weights, self._idle(), self._kinds()), self._whole)
            self._drift = 0
        return self._prices

    def _weights(self) -> Weights:
        if self._policy == "fgd":
            return most_popular(self._mix.seen, POPULAR_PERCENT)
        return tuple((kind, weight) for kind, weight in self._mix.seen if kind.gpu_count)

    def _idle(self) -> dict[str, int]:
        """Return the free core of each model."""
        if self._rows is not None:
            return self._rows.board.idle()
        idle = {gpu.model: 0 for gpu in self._gpus.values()}
        for gpu in self._gpus.values():
            idle[gpu.model] += gpu.core_free if gpu.schedulable else 0
        return idle

    def _kinds(self) -> frozenset[Machine]:
        if self._machines is None:
            counted: Counter[tuple[str, str]] = Counter((gpu.node, gpu.model) for gpu in self._gpus.values())
            cpu = {name: node.cpu_milli for name, node in self._nodes.items()}
            self._machines = frozenset(Machine(model, n, cpu.get(name)) for (name, model), n in counted.items())
        return self._machines

    def _as_nodes(self) -> Iterable[Node]:
        for name in sorted(self._on):
            state = self._nodes.get(name) or NodeState(name)
            yield machine(state, [self._now(uuid) for _, uuid in self._on[name]])

    def _place_and_take(self, request: Request) -> Placed | Refused:
        answer = self.place(request)
        if isinstance(answer, Placed):
            self.take(answer.gpus, request, node=answer.node)
        return answer

    def _move(self, gpus: Sequence[str], node: str, request: Request, sign: int) -> None:
        self._drift += sign * len(gpus) * request.core_request
        self._beside(gpus, node, request, sign)
        if request.profile is not None:
            self._move_instances(gpus, request, request.profile, sign)
            return
        if self._over and gpus:
            node = self._gpus[gpus[0]].node
            gpus = self._move_over(gpus, request, sign)
        if self._rows is not None:
            self._rows.move(gpus, node, request, sign)
            return
        for uuid in gpus:
            gpu = self._gpus[uuid]
            core, memory = gpu.core_free - sign * request.core_request, gpu.memory_free_mib - sign * request.memory_mib
            self._gpus[uuid] = replace(gpu, core_free=core, memory_free_mib=memory)

    def _move_over(self, gpus: Sequence[str], request: Request, sign: int) -> list[str]:
        """Move the request on the GPUs used twice, by itself: a board knows nothing below zero.

        Return the other GPUs.
        """
        for uuid in self._over.intersection(gpus):
            self._put(self._now(uuid).with_more(-sign * request.core_request, -sign * request.memory_mib))
        return [uuid for uuid in gpus if uuid not in self._over]

    def _move_instances(self, gpus: Sequence[str], request: Request, profile: str, sign: int) -> None:
        """Make an instance on each of these GPUs, or remove it: the one that the request names, or was taken last.

        If neither is known, its slices stay occupied.
        """
        for uuid in gpus:
            gpu = self._now(uuid)
            if gpu.mig is None:
                continue
            taken, mig, start = self._starts.setdefault(uuid, {}).setdefault(request, []), gpu.mig, request.start
            if sign > 0:
                if start is None and (start := mig.choose(profile)) is not None:
                    taken.append(start)
                mig = mig if start is None else mig.occupied(profile, start)
            elif start is not None or taken:
                mig = mig.vacated(profile, taken.pop() if start is None else start)
            more = gpu.with_more(-sign * request.core_request, -sign * request.memory_mib)
            self._put(replace(more, mig=mig))

    def _beside(self, gpus: Sequence[str], node: str, request: Request, sign: int) -> None:
        """Apply the parts of a move that rows do not keep: labels, and the nodes' CPU and RAM."""
        if labels := request.labels:
            self._label(gpus, labels, sign)
        if request.cpu_milli or request.ram_mib:
            self._charge_nodes(gpus, node, request, sign)

    def _label(self, gpus: Sequence[str], labels: tuple[Label, ...], sign: int) -> None:
        for uuid in gpus:
            gpu = self._gpus[uuid]
            after = tuple(sorted(gpu.labels + labels)) if sign > 0 else _without(gpu.labels, labels)
            self._relabel(uuid, gpu.labels, after)
            self._gpus[uuid] = replace(gpu, labels=after)
            if self._rows is not None:
                self._rows.board.label(after, self._rows.board.spot[uuid])

    def _charge_nodes(self, gpus: Sequence[str], node: str, request: Request, sign: int) -> None:
        for name in {self._gpus[uuid].node for uuid in gpus} or {node}:
            if name in self._nodes:
                self._nodes[name] = _charge_node(self._nodes[name], request, sign)

    def _now(self, uuid: str) -> GpuState:
        if self._rows is None:
            return self._gpus[uuid]
        core, memory = self._rows.board.free(uuid)
        return replace(self._gpus[uuid], core_free=core, memory_free_mib=memory)

    def _settle(self) -> None:
        """Drop the rows, which no longer fit, after saving what they know; they are made anew when next needed."""
        if self._rows is not None:
            self._gpus = {uuid: self._now(uuid) for uuid in self._gpus}
        self._rows = None

    def _relabel(self, uuid: str, before: Iterable[Label], after: Iterable[Label]) -> None:
        for label in before:
            on = self._where[label]
            on[uuid] -= 1
            if not on[uuid]:
                del on[uuid]
            if not on:
                del self._where[label]
        for label in after:
            on = self._where.setdefault(label, {})
            on[uuid] = on.get(uuid, 0) + 1


def _charge_node(node: NodeState, request: Request, sign: int) -> NodeState:
    cpu, ram = node.cpu_milli_free, node.ram_mib_free
    return replace(
        node,
        cpu_milli_free=cpu if cpu is None else cpu - sign * request.cpu_milli,
        ram_mib_free=ram if ram is None else ram - sign * request.ram_mib,
    )


def _without(labels: tuple[Label, ...], gone: Iterable[Label]) -> tuple[Label, ...]:
    left = list(labels)
    for label in gone:
        # A GPU may have been read again since, with the group that its claims really have.
        if label in left or label.kind != SHARING_GROUP:
            left.remove(label)
    return tuple(left)
