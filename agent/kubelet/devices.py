"""GPUs as the kubelet counts them: the ids of which it allocates shares. No I/O.

A GPU is a hundred devices of `tencent.com/vcuda-core` and one of `tencent.com/vcuda-memory` for each 256 MiB; the names
are gpu-manager's, but short on machines with so much memory that one message could not carry all. The kubelet picks ids
by number, not by GPU: the scheduler decides which GPU a container has, never its ids. The plugin prefers ids of that
GPU all the same, so that a sick GPU takes its own ids out of the kubelet's count.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from agent import wire
from agent.wire import ConditionType

CORE = "tencent.com/vcuda-core"
MEMORY = "tencent.com/vcuda-memory"
CORES_OF_A_GPU = 100
BLOCK_BYTES = 256 << 20
# gRPC's messages have at most 4 MiB. A device has 55 bytes under gpu-manager's name, 23 under a short one, and 6 more
# with its memory node.
MOST_LONG_NAMES = 50_000
MOST_WITH_NODES = 120_000


class Offer(NamedTuple):
    """One resource as it is offered to the kubelet."""

    # Its ids, in order, by the uuid of the GPU that they stand for.
    ids: dict[str, tuple[str, ...]]
    # Those of GPUs that take no new work.
    unhealthy: frozenset[str] = frozenset()
    # The memory node (NUMA) of each GPU of which the machine says it.
    memory_nodes: dict[str, int] = {}


class Wish(NamedTuple):
    """A container that waits for its devices: how many, and the GPUs on which the scheduler has placed it."""

    size: int
    gpus: tuple[str, ...]


def offer(
    resource: str,
    gpus: Iterable[wire.Gpu],
    unhealthy: Collection[str] = (),
    memory_nodes: Mapping[str, int] | None = None,
) -> Offer:
    """Return all ids of the resource; `unhealthy` names GPUs by uuid, and so does `memory_nodes`."""
    ids: dict[str, tuple[str, ...]] = {}
    first, found = 0, sorted(gpus, key=lambda one: one.index)
    blocks = sum(gpu.memory_bytes // BLOCK_BYTES for gpu in found)
    prefix = f"{MEMORY}-{BLOCK_BYTES}-" if blocks <= MOST_LONG_NAMES else "m-"
    for gpu in found:
        if resource == CORE:
            numbers = range(gpu.index * CORES_OF_A_GPU, (gpu.index + 1) * CORES_OF_A_GPU)
            ids[gpu.uuid] = tuple(f"{CORE}-{number}" for number in numbers)
        else:
            end = first + gpu.memory_bytes // BLOCK_BYTES
            ids[gpu.uuid] = tuple(f"{prefix}{number}" for number in range(first, end))
            first = end
    # The kubelet takes devices without one for near everything.
    fits = sum(map(len, ids.values())) <= MOST_WITH_NODES
    nodes = {uuid: node for uuid, node in (memory_nodes or {}).items() if uuid in ids and fits}
    return Offer(ids, frozenset(one for uuid in unhealthy for one in ids.get(uuid, ())), nodes)


def unhealthy_gpus(gpus: Iterable[wire.Gpu], conditions: Iterable[wire.Condition]) -> frozenset[str]:
    """Return the GPUs, by uuid, that take no new work: each for its own reason, or all if the driver fails."""
    bad = [one for one in conditions if one.unschedulable and one.status == "False"]
    if any(one.gpu_uuid is None and one.type == ConditionType.DRIVER_HEALTHY for one in bad):
        return frozenset(gpu.uuid for gpu in gpus)
    return frozenset(one.gpu_uuid for one in bad if one.gpu_uuid is not None)


def wishes(resource: str, assignments: Iterable[wire.Assignment], have: Collection[wire.Pod]) -> list[Wish]:
    """Return the expected requests of the kubelet: those of containers that are not among those that have devices."""
    sizes: dict[wire.Pod, dict[str, int]] = {}
    for one in assignments:
        if one.present and one.pod is not None and one.pod not in have:
            size = one.core_request if resource == CORE else one.memory_bytes // BLOCK_BYTES
            sizes.setdefault(one.pod, {})[one.gpu_uuid] = size
    return [Wish(sum(gpus.values()), tuple(gpus)) for gpus in sizes.values()]


def choose_ids(
    offered: Mapping[str, Sequence[str]],
    wished: Sequence[Wish],
    *,
    available: Collection[str],
    required: Collection[str],
    size: int,
) -> list[str]:
    """Return `size` of the available ids with all of the required, those of a waiting container's GPUs first.

    If several containers of one size wait, it may be another's GPUs: this order allocates nothing.
    """
    chosen = list(dict.fromkeys(required))
    left = set(available) - set(chosen)
    free = {gpu: [one for one in ids if one in left] for gpu, ids in offered.items()}
    order = next((wish.gpus for wish in wished if wish.size == size), ())
    # Then the GPU with the fewest ids left: whole ones stay whole.
    rest = sorted((gpu for gpu in free if gpu not in order), key=lambda gpu: (len(free[gpu]) < size, len(free[gpu])))
    share = -(-size // len(order)) if order else size
    for gpu in order:
        chosen += free[gpu][:share]
    chosen += [one for gpu in (*order, *rest) for one in free.get(gpu, ())]
    return list(dict.fromkeys(chosen))[:size]
