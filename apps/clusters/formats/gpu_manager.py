"""Format of gpu-manager and gpu-admission: `tencent.com/vcuda-core` and `tencent.com/vcuda-memory`.

100 cores are one GPU, a unit of memory is 256 MiB. A share of one GPU names both; whole GPUs are multiples of 100 and
include all memory, whatever the memory resource says. An annotation for each container lists its GPUs by index.
Sidecars, of which it knows nothing, follow the containers here.
"""

from collections.abc import Mapping, Sequence

from apps.clusters.formats import pods
from apps.clusters.formats.asks import WHOLE, Ask, Share, Unreadable
from apps.clusters.formats.guarded import Guarded
from apps.clusters.formats.wishes import Wishes, gang_of, selection_of, unmet_gang

NAME = "gpu-manager"
CORE = "tencent.com/vcuda-core"
MEMORY = "tencent.com/vcuda-memory"
RESOURCES = (CORE, MEMORY)
UNIT_MIB = 256
QUOTAS = {f"requests.{CORE}": ("core_percent", 1), f"requests.{MEMORY}": ("memory_mib", UNIT_MIB)}
CORE_LIMIT = "tencent.com/vcuda-core-limit"
INDEX_PREFIX = "tencent.com/predicate-gpu-idx-"
NODE = "tencent.com/predicate-node"
TIME = "tencent.com/predicate-time"
ASSIGNED = "tencent.com/gpu-assigned"
GUARDED = Guarded(annotations=(INDEX_PREFIX, NODE, TIME, ASSIGNED))
WRITERS = ("gpu-admission", "gpu-manager")
SCHEDULERS: tuple[str, ...] = ()
IMPORTED_ONLY = False


def asks(pod: pods.Pod) -> tuple[Ask, ...]:
    """Return the requests of the containers that ask for GPUs, in order. Raises Unreadable."""
    return tuple(ask for _, ask in _asking(pod))


def holds(pod: pods.Pod) -> tuple[Share, ...]:
    """Return the shares that gpu-admission's annotations name. Raises Unreadable."""
    shares = []
    for position, ask in _asking(pod):
        key = f"{INDEX_PREFIX}{position}"
        said = pods.annotations(pod).get(key)
        if said is None and position >= len(pods.containers(pod)):
            continue  # gpu-admission chooses nothing for sidecars
        if said is None:
            raise Unreadable(f"{pods.name_of(pod)}: no annotation {key}, so its GPU is unknown.")
        indexes = [pods.whole_text(text.strip(), f"{pods.name_of(pod)}, {key}") for text in said.split(",")]
        if len(set(indexes)) != ask.gpu_count or len(indexes) != ask.gpu_count:
            raise Unreadable(f"{pods.name_of(pod)}: {key} is {said!r}, but the container asks {ask.gpu_count} GPU(s).")
        shares += [
            Share(ask.container, ask.core_request, ask.core_limit, ask.memory_mib, gpu_index=index) for index in indexes
        ]
    return tuple(shares)


def annotations_for(pod: pods.Pod, shares: Sequence[Share], *, node: str, at_ns: int) -> dict[str, str]:
    """Return the annotations of these shares as gpu-admission writes them."""
    written = {NODE: node, TIME: str(at_ns), ASSIGNED: "false"}
    for position, ask in _asking(pod):
        indexes = [str(share.gpu_index) for share in shares if share.container == ask.container]
        written[f"{INDEX_PREFIX}{position}"] = ",".join(indexes)
    return written


def quota(hard: Mapping[str, int]) -> dict[str, int]:
    """Return the ResourceQuota's amounts in our resources. Kubernetes enforces `requests.` only."""
    return {QUOTAS[key][0]: value * QUOTAS[key][1] for key, value in hard.items() if key in QUOTAS}


def wishes(pod: pods.Pod) -> Wishes:
    """Return what the annotations ask that the extender reads."""
    said = pods.annotations(pod)
    return Wishes(selection_of(said), gang_of(said), unmet_gang(said))


def _asking(pod: pods.Pod) -> list[tuple[int, Ask]]:
    """Return the containers that ask for GPUs, with their index among those that last."""
    asking = []
    for position, container in enumerate(pods.lasting_containers(pod)):
        core = pods.amount(container, CORE) or 0
        memory = pods.amount(container, MEMORY) or 0
        if core or memory:
            asking.append((position, _ask(pod, str(container.get("name")), core, memory)))
    return asking


def _ask(pod: pods.Pod, container: str, core: int, memory: int) -> Ask:
    if core == 0:
        raise Unreadable(
            f"Container {container} asks {MEMORY} {memory} and no {CORE}: it would be placed without a GPU. "
            f"Give {CORE}, from 1 to 99 or a multiple of 100."
        )
    if core >= WHOLE:
        if core % WHOLE:
            raise Unreadable(
                f"Container {container} asks {CORE} {core}: give less than 100, or a multiple of 100 for whole GPUs."
            )
        return Ask(container, core // WHOLE, WHOLE, WHOLE, memory_percent=WHOLE)
    if memory == 0:
        raise Unreadable(
            f"Container {container} asks {CORE} {core} and no {MEMORY}: it would be placed without a GPU. "
            f"Give {MEMORY} in units of {UNIT_MIB} MiB."
        )
    return Ask(container, 1, core, _ceiling(pod, core), memory_mib=memory * UNIT_MIB)


def _ceiling(pod: pods.Pod, core: int) -> int:
    """Return the core limit: the share while other claims are idle."""
    said = pods.annotations(pod).get(CORE_LIMIT)
    if said is None:
        return core
    limit = pods.whole_text(said.strip(), f"{pods.name_of(pod)}, {CORE_LIMIT}")
    if not core <= limit <= WHOLE:
        raise Unreadable(f"{pods.name_of(pod)}: {CORE_LIMIT} is {limit}: give {core} (what is asked) to 100.")
    return limit
