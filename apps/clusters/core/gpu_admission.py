"""gpu-admission's way to choose a pod's node and GPUs, as its users know it.

A node's GPUs are told by two numbers: k = capacity(vcuda-core) // 100 of them, each with capacity(vcuda-memory) // k
units. What is used of each follows from the annotations of the node's live pods. Nodes are tried in ascending order of
(core left, memory left, name), so that the fullest is filled first; on each, containers in their order, each seeing
what those before it took: below 100 core the first GPU in ascending order of (core left, memory left, index) with room
for both, else core // 100 wholly free GPUs in that order, whole.

It counts unlike the rest of this product: a pod at a time, by what annotations say, and it never looks at quotas.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from heapq import heapify, heappop

CORE, MEMORY = "tencent.com/vcuda-core", "tencent.com/vcuda-memory"
INDEX_PREFIX = "tencent.com/predicate-gpu-idx-"
NODE, TIME, ASSIGNED = "tencent.com/predicate-node", "tencent.com/predicate-time", "tencent.com/gpu-assigned"
WHOLE = 100
OVER = ("Succeeded", "Failed")
# More than a machine has. A node that tells of more, as its own kubelet may, tells of none that could be counted.
MOST_GPUS = 64


@dataclass(frozen=True, slots=True)
class ContainerRequest:
    """What one container's limits say, in core and in units of memory."""

    core: int
    memory: int

    @property
    def wants_gpu(self) -> bool:
        """Whether a GPU is to be chosen for it. Of a share without memory none is: a hole of the original."""
        return self.core > 0 and (self.core >= WHOLE or self.memory > 0)


@dataclass(frozen=True, slots=True)
class HeldShare:
    """What one container has on one GPU; from 100 core on the whole GPU, whatever memory was asked."""

    index: int
    core: int
    memory: int


# GPUs by the container's place in `spec.containers`.
Chosen = Mapping[int, tuple[int, ...]]


def wants_gpu(containers: Iterable[ContainerRequest]) -> bool:
    """Whether the pod is looked at, all containers together; another pod passes everywhere."""
    asked = list(containers)
    return ContainerRequest(sum(item.core for item in asked), sum(item.memory for item in asked)).wants_gpu


def is_predicated(annotations: Iterable[str]) -> bool:
    """Whether the pod was decided before, by the names of its annotations."""
    return any(word in name for name in annotations for word in (ASSIGNED, TIME, INDEX_PREFIX))


def held_shares(containers: Iterable[ContainerRequest], annotations: Mapping[str, str]) -> tuple[HeldShare, ...]:
    """What a pod's annotations say that it has, in the order in which it is counted."""
    return tuple(
        HeldShare(index, min(asked.core, WHOLE), asked.memory)
        for place, asked in enumerate(containers)
        for index in indexes(annotations, place)
    )


def indexes(annotations: Mapping[str, str], place: int) -> tuple[int, ...]:
    """The GPUs of the container at this place in `spec.containers`; none where one of the numbers is none."""
    text = annotations.get(f"{INDEX_PREFIX}{place}")
    if text is None:
        return ()
    try:
        return tuple(_number(word) for word in text.split(","))
    except ValueError:
        return ()


def _number(word: str) -> int:
    """Digits, with a sign or without: Python's own reading takes spaces and underscores too."""
    digits = word[1:] if word[:1] in ("+", "-") else word
    if not (digits.isascii() and digits.isdecimal()):
        raise ValueError(word)
    return int(word)


class View:
    """A node with what is left of each of its GPUs. Once made it is changed by `choose` only."""

    __slots__ = ("core_free", "core_left", "count", "memory_each", "memory_free", "memory_left", "name", "order")

    def __init__(
        self,
        name: str,
        core: int,
        memory: int,
        pods: Iterable[tuple[HeldShare, ...]] = (),
        others: Iterable[HeldShare] = (),
    ) -> None:
        """`core` and `memory` are the node's capacities, `pods` what each of its live pods has.

        `others` is what is used besides: the original knows of nothing else. Of a GPU that bears too much none is left.
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
        """Count it, or nothing of it where there is no room: then somebody's annotation is wrong."""
        if core > self.core_free[index] or memory > self.memory_free[index]:
            return False
        self.core_free[index] -= core
        self.memory_free[index] -= memory
        self.core_left -= core
        self.memory_left -= memory
        return True

    def fit(self, containers: Iterable[ContainerRequest]) -> Chosen | None:
        """GPUs for every container that wants some, or None where one has no room."""
        asked = [(place, item) for place, item in enumerate(containers) if item.wants_gpu]
        trial, chosen = self._copy(), dict[int, tuple[int, ...]]()
        for place, item in asked:
            chosen[place] = trial.choose(item)
            if not chosen[place]:
                return None
        return chosen

    def choose(self, asked: ContainerRequest) -> tuple[int, ...]:
        """GPUs for one container, which are then taken in this view; none where there is no room."""
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

    def _copy(self) -> "View":
        twin = View.__new__(View)
        twin.name, twin.count, twin.memory_each, twin.order = self.name, self.count, self.memory_each, self.order
        twin.core_free, twin.memory_free = list(self.core_free), list(self.memory_free)
        twin.core_left, twin.memory_left = self.core_left, self.memory_left
        return twin


def tries(views: Iterable[View], containers: tuple[ContainerRequest, ...]) -> Iterator[tuple[View, Chosen | None]]:
    """Each node in its turn, with what fits there; who has found a place stops asking."""
    least = sum(item.core if item.core < WHOLE else item.core // WHOLE * WHOLE for item in containers if item.wants_gpu)
    turns = []
    for place, view in enumerate(views):
        # Most of a busy fleet is out of the question by this one number, which is also the first that orders them.
        if view.core_left < least:
            yield view, None
        else:
            turns.append((view.order, place, view))
    # Not sorted: mostly the first few are enough.
    heapify(turns)
    while turns:
        view = heappop(turns)[2]
        yield view, view.fit(containers)


def annotations(node: str, chosen: Chosen, *, time_ns: int) -> dict[str, str]:
    """What is written to the pod."""
    places = {f"{INDEX_PREFIX}{place}": ",".join(map(str, found)) for place, found in chosen.items()}
    return {**places, NODE: node, ASSIGNED: "false", TIME: str(time_ns)}
