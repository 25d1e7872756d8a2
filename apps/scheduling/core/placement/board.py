"""A fleet as arrays, node by node with room for the same number of GPUs each; and the mix as sums over it.

The C kernel works on these. Numbers stand for words: models, exclusion labels, machines with the same links.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from apps.scheduling.core.placement.fragmentation import Prices
from apps.scheduling.core.placement.mix import Type
from apps.scheduling.core.placement.policies import POLICIES, Node
from apps.scheduling.core.placement.power import gpu_rise
from apps.scheduling.core.placement.topology import Near
from apps.scheduling.core.values import GpuState, Label, NodeState

UNKNOWN = -(1 << 63)
# Numbers of exclusion labels: 0 is none, 1 is one that no GPU carries, -1 is more than one.
UNSEEN = 1
WIDEST = 255

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]


class Board:
    """The arrays. `spot` says where a GPU is: (node, place)."""

    def __init__(self, nodes: Sequence[Node], policy: str, whole: int) -> None:
        self.policy, self.whole = list(POLICIES).index(policy), whole
        self.nodes = nodes
        self.width = max(len(node.gpus) for node in nodes)
        n, shape = len(nodes), (len(nodes), self.width)
        self.count: Int32 = np.array([len(node.gpus) for node in nodes], np.int32)
        self.cpu: Int64 = np.array([_known(node.state.cpu_milli_free) for node in nodes], np.int64)
        self.ram: Int64 = np.array([_known(node.state.ram_mib_free) for node in nodes], np.int64)
        self.all_cpu: Int64 = np.array([_known(node.state.cpu_milli) for node in nodes], np.int64)
        self.core: Int32 = np.zeros(shape, np.int32)
        self.memory: Int64 = np.zeros(shape, np.int64)
        self.size: Int64 = np.zeros(shape, np.int64)
        self.alive: Bytes = np.zeros(shape, np.uint8)
        # What ails a GPU that is not alive for that alone.
        self.sick: dict[tuple[int, int], str] = {}
        self.exclusion: Int32 = np.zeros(shape, np.int32)
        self.model: Int32 = np.zeros(shape, np.int32)
        self.near: Int32 = np.full(n, -1, np.int32)
        self.models: dict[str, int] = {}
        self.exclusions: dict[Label, int] = {}
        self.spot: dict[str, tuple[int, int]] = {}
        self.place_of = {node.state.name: number for number, node in enumerate(nodes)}
        self.uuids = [[gpu.uuid for gpu in node.gpus] for node in nodes]
        # The same place as one number.
        self.number: dict[str, int] = {}
        self.named = [gpu for uuids in self.uuids for gpu in (*uuids, *[""] * (self.width - len(uuids)))]
        self.matrices = self._links()
        for number, node in enumerate(nodes):
            for place, gpu in enumerate(node.gpus):
                self.spot[gpu.uuid] = number, place
                self.number[gpu.uuid] = number * self.width + place
                self.model[number, place] = self.models.setdefault(gpu.model, len(self.models))
                self.put(gpu, (number, place))

    def put(self, gpu: GpuState, spot: tuple[int, int]) -> None:
        """Set the GPU's present state; its node, place and model stay."""
        self.core[spot] = gpu.core_free
        self.memory[spot] = gpu.memory_free_mib
        self.size[spot] = gpu.memory_mib
        self.alive[spot] = gpu.schedulable
        self.sick.pop(spot, None)
        if gpu.unhealthy:
            self.sick[spot] = gpu.unhealthy
        self.label(gpu.labels, spot)

    def machine(self, state: NodeState) -> None:
        """Set the node's present CPU and RAM; its labels and links stay."""
        number = self.place_of[state.name]
        self.cpu[number], self.ram[number] = _known(state.cpu_milli_free), _known(state.ram_mib_free)
        self.all_cpu[number] = _known(state.cpu_milli)

    def label(self, labels: Sequence[Label], spot: tuple[int, int]) -> None:
        """Set the labels that the GPU carries now."""
        kept = {label for label in labels if label.kind == "exclusion"}
        self.exclusion[spot] = -1 if len(kept) > 1 else next((self._number(label) for label in kept), 0)

    def _number(self, label: Label) -> int:
        return self.exclusions.setdefault(label, len(self.exclusions) + UNSEEN + 1)

    def _links(self) -> Bytes:
        known: dict[Near, int] = {}
        for number, node in enumerate(self.nodes):
            if node.near is not None:
                self.near[number] = known.setdefault(node.near, len(known))
        matrices: Bytes = np.zeros((max(len(known), 1), self.width, self.width), np.uint8)
        for near, number in known.items():
            matrices[number, : len(near), : len(near)] = near
        return matrices

    def idle(self) -> dict[str, int]:
        """Core free of each model."""
        core = self.core * self.alive.astype(np.int64)
        return {model: int(core[self.model == number].sum()) for model, number in self.models.items()}

    def free(self, uuid: str) -> tuple[int, int]:
        """Core and MiB free of the GPU now."""
        spot = self.spot[uuid]
        return int(self.core[spot]), int(self.memory[spot])


def _known(amount: int | None) -> int:
    return UNKNOWN if amount is None else amount


@dataclass(frozen=True)
class Tables:
    """The mix for one board: `fragmentation.py` says what is summed, the kernel's `struct mix` how it lies."""

    total: int
    core_index: Int32
    cores: Int64
    memories: Int64
    cpus: Int64
    single: Int64
    class_core: Int32
    class_memory: Int64
    class_models: Bytes
    several: Int64
    prices: Int64
    buckets: Int64
    watts: Int64

    @classmethod
    def of(cls, prices: Prices, board: Board) -> "Tables":
        """Compute sums over the mix, so that a GPU's part in fragmentation is one look-up."""
        kinds = [(kind, weight) for kind, weight in prices.weights if kind.gpu_count]
        ones = [(kind, weight) for kind, weight in kinds if kind.gpu_count == 1]
        cores, memories = _axis(kind.core for kind, _ in ones), _axis(kind.memory_mib for kind, _ in ones)
        cpus = _axis(kind.cpu_milli for kind, _ in kinds)
        several, classes = _several(kinds, cpus, board)
        return cls(
            total=prices.total,
            core_index=np.searchsorted(cores, np.arange(board.whole + 1), side="right").astype(np.int32),
            cores=cores,
            memories=memories,
            cpus=cpus,
            single=_single(ones, (cores, memories, cpus), board.models),
            class_core=np.array([core for core, _, _ in classes], np.int32),
            class_memory=np.array([memory for _, memory, _ in classes], np.int64),
            class_models=np.array([allowed(models, board.models) for _, _, models in classes], np.uint8),
            several=several,
            prices=np.array([prices.of(model) for model in board.models], np.int64),
            buckets=np.array(prices.buckets, np.int64),
            watts=np.array([gpu_rise(model) for model in board.models], np.int64),
        )


def _axis(values: Iterable[int]) -> Int64:
    return np.array(sorted(set(values)), np.int64)


def allowed(models: Sequence[str], known: Mapping[str, int]) -> list[int]:
    return [int(not models or model in models) for model in known]


def _single(ones: Sequence[tuple[Type, int]], axes: tuple[Int64, Int64, Int64], models: Mapping[str, int]) -> Int64:
    cores, memories, cpus = axes
    sums: Int64 = np.zeros((len(models), len(cpus) + 1, len(cores) + 1, len(memories) + 1), np.int64)
    for kind, weight in ones:
        cell = (
            int(np.searchsorted(cpus, kind.cpu_milli)) + 1,
            int(np.searchsorted(cores, kind.core)) + 1,
            int(np.searchsorted(memories, kind.memory_mib)) + 1,
        )
        for model, number in models.items():
            if not kind.models or model in kind.models:
                sums[(number, *cell)] += weight
    return np.ascontiguousarray(sums.cumsum(1).cumsum(2).cumsum(3))


Class = tuple[int, int, tuple[str, ...]]


def _several(kinds: Sequence[tuple[Type, int]], cpus: Int64, board: Board) -> tuple[Int64, list[Class]]:
    """Return the weight of each class's types by CPU reached and GPUs that carry the class, and the classes."""
    classes: dict[Class, int] = {}
    many = [(kind, weight) for kind, weight in kinds if 1 < kind.gpu_count <= board.width]
    for kind, _ in many:
        classes.setdefault((kind.core, kind.memory_mib, kind.models), len(classes))
    sums: Int64 = np.zeros((len(classes), len(cpus) + 1, board.width + 1), np.int64)
    for kind, weight in many:
        at = classes[kind.core, kind.memory_mib, kind.models]
        sums[at, int(np.searchsorted(cpus, kind.cpu_milli)) + 1, kind.gpu_count] += weight
    return np.ascontiguousarray(sums.cumsum(1).cumsum(2)), list(classes)
