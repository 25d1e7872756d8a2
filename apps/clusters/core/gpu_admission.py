"""gpu-admission's algorithm for choosing a pod's node and GPUs.

A node's GPUs follow from two numbers: k = capacity(vcuda-core) // 100 GPUs, each with capacity(vcuda-memory) // k
units. Their use follows from the annotations of the node's live pods. Nodes are tried in ascending order of (core left,
memory left, name), so the fullest is filled first. On each node, containers are placed in order, each after those
before it: below 100 core on the first GPU in ascending order of (core left, memory left, index) with room for both,
else on core // 100 wholly free GPUs in that order.

It differs from the rest of this product: it places one pod at a time, counts by annotations, and ignores quotas.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from heapq import heapify, heappop

CORE, MEMORY = "tencent.com/vcuda-core", "tencent.com/vcuda-memory"
INDEX_PREFIX = "tencent.com/predicate-gpu-idx-"
NODE, TIME, ASSIGNED = "tencent.com/predicate-node", "tencent.com/predicate-time", "tencent.com/gpu-assigned"
WHOLE = 100
OVER = ("Succeeded", "Failed")
# More than a machine has. A node whose kubelet reports more counts as a node without GPUs.
MOST_GPUS = 64


@dataclass(frozen=True, slots=True)
class ContainerRequest:
    """Limits of one container, in core and in units of memory."""

    core: int
    memory: int

    @property
    def wants_gpu(self) -> bool:
        """True if a GPU is chosen for it; a share without memory gets none, as in the original."""
        return self.core > 0 and (self.core >= WHOLE or self.memory > 0)


@dataclass(frozen=True, slots=True)
class HeldShare:
    """Part of one GPU that a container holds; from 100 core on the whole GPU, whatever its memory request."""

    index: int
    core: int
    memory: int


# GPUs by the container's place in `spec.containers`; sidecars, unknown to the original, follow these.
Chosen = Mapping[int, tuple[int, ...]]


def wants_gpu(containers: Iterable[ContainerRequest]) -> bool:
    """Return True if the pod's containers together ask for a GPU; other pods pass on every node."""
    asked = list(containers)
    return ContainerRequest(sum(item.core for item in asked), sum(item.memory for item in asked)).wants_gpu


def is_predicated(annotations: Iterable[str]) -> bool:
    """Return True if the names of the pod's annotations show an earlier decision."""
    return any(word in name for name in annotations for word in (ASSIGNED, TIME, INDEX_PREFIX))


def held_shares(containers: Iterable[ContainerRequest], annotations: Mapping[str, str]) -> tuple[HeldShare, ...]:
    """Return the shares that a pod's annotations name, in counting order."""
    return tuple(
        HeldShare(index, min(asked.core, WHOLE), asked.memory)
        for place, asked in enumerate(containers)
        for index in indexes(annotations, place)
    )


def indexes(annotations: Mapping[str, str], place: int) -> tuple[int, ...]:
    """Return the GPUs of the container at this index; empty if a number is malformed."""
    text = annotations.get(f"{INDEX_PREFIX}{place}")
    if text is None:
        return ()
    try:
        return tuple(_number(word) for word in text.split(","))
    except ValueError:
        return ()


def _number(word: str) -> int:
    """Parse digits with an optional sign: int() would accept spaces and underscores too."""
    digits = word[1:] if word[:1] in ("+", "-") else word
    if not (digits.isascii() and digits.isdecimal()):
        raise ValueError(word)
    return int(word)


class View:
    """Free capacity of each GPU of a node. Only `choose` changes it after construction."""

    __slots__ = ("core_free", "core_left", "count", "memory_each", "memory_free", "memory_left", "name", "order")

    def __init__(
        self,
        name: str,
        core: int,
        memory: int,
        pods: Iterable[tuple[HeldShare, ...]] = (),
        others: Iterable[HeldShare] = (),
    ) -> None:
        """Subtract what pods and others hold from the node's capacities.

        `core` and `memory` are the node's capacities, `pods` the shares of each live pod. `others` are further shares,
        unknown to the original. A GPU that holds more than it has counts as full.
        """
        self.name, self.count = name, core // WHOLE
        if self.count > MOST_GPUS:
            self.count = memory = 0
        self.memory_each = memory // self.count if self.count else 0
        self.core_free = [WHOLE] * self.count
        self.memory_free = [self.memory_each] * self.count
        self.core_left, self.memory_left = WHOLE * self.count, memory
        for shares in pods:
            for share in shares:
                if 0 <= share.index < self.count:
                    whole = share.core >= WHOLE
                    self._take(share.index, share.core, self.memory_each if whole else share.memory)
        for share in others:
            if 0 <= share.index < self.count:
                free = self.core_free[share.index], self.memory_free[share.index]
                self._take(share.index, min(share.core, free[0]), min(share.memory, free[1]))
        self.order = (self.core_left, self.memory_left, name)

    def _take(self, index: int, core: int, memory: int) -> bool:
        """Take the share and return True, or return False if there is no room (then an annotation is wrong)."""
        if core > self.core_free[index] or memory > self.memory_free[index]:
            return False
        self.core_free[index] -= core
        self.memory_free[index] -= memory
        self.core_left -= core
        self.memory_left -= memory
        return True

    def fit(self, containers: Iterable[ContainerRequest]) -> Chosen | None:
        """Return GPUs for every container that asks for some, or None if one does not fit."""
        asked = [(place, item) for place, item in enumerate(containers) if item.wants_gpu]
        trial, chosen = self._copy(), dict[int, tuple[int, ...]]()
        for place, item in asked:
            chosen[place] = trial.choose(item)
            if not chosen[place]:
                return None
        return chosen

    def choose(self, asked: ContainerRequest) -> tuple[int, ...]:
        """Choose and take GPUs for one container; empty if there is no room."""
        ascending = sorted(range(self.count), key=lambda index: (self.core_free[index], self.memory_free[index], index))
        if asked.core < WHOLE:
            for index in ascending:
                if self._take(index, asked.core, asked.memory):
                    return (index,)
            return ()
        wanted = asked.core // WHOLE
        free = [index for index in ascending if self.core_free[index] == WHOLE][:wanted]
        if len(free) < wanted or not all(self._take(index, WHOLE, self.memory_each) for index in free):
            return ()
        return tuple(free)

    def without(self, indexes: Iterable[int]) -> "View":
        """Return the view with nothing free on these GPUs."""
        twin = self._copy()
        for index in indexes:
            twin.core_left -= twin.core_free[index]
            twin.memory_left -= twin.memory_free[index]
            twin.core_free[index] = twin.memory_free[index] = 0
        twin.order = (twin.core_left, twin.memory_left, twin.name)
        return twin

    def _copy(self) -> "View":
        twin = View.__new__(View)
        twin.name, twin.count, twin.memory_each, twin.order = self.name, self.count, self.memory_each, self.order
        twin.core_free, twin.memory_free = list(self.core_free), list(self.memory_free)
        twin.core_left, twin.memory_left = self.core_left, self.memory_left
        return twin


def tries(views: Iterable[View], containers: tuple[ContainerRequest, ...]) -> Iterator[tuple[View, Chosen | None]]:
    """Yield each node in order with the GPUs that fit there; the caller stops at the first that suits it."""
    least = sum(item.core if item.core < WHOLE else item.core // WHOLE * WHOLE for item in containers if item.wants_gpu)
    turns = []
    for place, view in enumerate(views):
        # This number excludes most nodes of a busy fleet; it is also the first sort key.
        if view.core_left < least:
            yield view, None
        else:
            turns.append((view.order, place, view))
    # A heap instead of a sort: mostly the first few nodes are enough.
    heapify(turns)
    while turns:
        view = heappop(turns)[2]
        yield view, view.fit(containers)


def annotations(node: str, chosen: Chosen, *, time_ns: int) -> dict[str, str]:
    """Return the annotations that gpu-admission writes to the pod."""
    places = {f"{INDEX_PREFIX}{place}": ",".join(map(str, found)) for place, found in chosen.items()}
    return {**places, NODE: node, ASSIGNED: "false", TIME: str(time_ns)}


def removed(written: Iterable[str]) -> dict[str, None]:
    """Return those of a pod's annotations that `annotations` writes, to be removed."""
    return dict.fromkeys(key for key in written if key.startswith((INDEX_PREFIX, NODE, ASSIGNED, TIME)))
