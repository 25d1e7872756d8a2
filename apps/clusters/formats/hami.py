"""Format of HAMi: `nvidia.com/gpu` GPUs, on each of them `gpumem` MiB (or `gpumem-percentage`) and `gpucores` percent.

Without memory a request is for whole GPUs. Without cores nothing is guaranteed and nothing limited, unless the memory
is whole: then the cores are too. One annotation holds the placement: `:` ends a container's device, `;` ends a
container (init containers first), a device is `uuid,type,MiB,cores`.
"""

from collections.abc import Iterator, Mapping, Sequence

from apps.clusters.formats import mig_resources, pods
from apps.clusters.formats.asks import WHOLE, Ask, Share, Unreadable
from apps.clusters.formats.guarded import Guarded
from apps.clusters.formats.wishes import Selection, Wishes, split, without

NAME = "HAMi"
COUNT = "nvidia.com/gpu"
MEMORY = "nvidia.com/gpumem"
MEMORY_PERCENT = "nvidia.com/gpumem-percentage"
CORES = "nvidia.com/gpucores"
SHARING = (MEMORY, MEMORY_PERCENT, CORES)
PRIORITY = "nvidia.com/priority"
RESOURCES = (COUNT, *SHARING, PRIORITY)
USE_MODEL, NOT_MODEL = "nvidia.com/use-gputype", "nvidia.com/nouse-gputype"
USE_UUID, NOT_UUID = "nvidia.com/use-gpuuuid", "nvidia.com/nouse-gpuuuid"
MODE, SHARED_MODE, MIG_MODE = "nvidia.com/vgpu-mode", "hami-core", "mig"
NUMA = "nvidia.com/numa-bind"
INDEXES = ("nvidia.com/use-gpuindex", "nvidia.com/nouse-gpuindex")
POLICIES = ("hami.io/node-scheduler-policy", "hami.io/gpu-scheduler-policy", "hami.io/device-scoring-weights")
ALLOCATED = "hami.io/vgpu-devices-allocated"
TO_ALLOCATE = "hami.io/vgpu-devices-to-allocate"
NODE = "hami.io/vgpu-node"
TIME = "hami.io/vgpu-time"
GUARDED = Guarded(annotations=(ALLOCATED, TO_ALLOCATE, NODE, TIME))
WRITERS = ("hami-scheduler", "hami-device-plugin")
SCHEDULERS = ("hami-scheduler",)
IMPORTED_ONLY = False
# What HAMi's scheduler and device plugin write beside.
WRITTEN = ("hami.io/vgpu-", "hami.io/bind-")
QUOTAS = {f"limits.{MEMORY}": "memory_mib", f"limits.{CORES}": "core_percent", f"requests.{COUNT}": "vgpus"}
TYPE = "NVIDIA"
FIELDS = 4


def asks(pod: pods.Pod) -> tuple[Ask, ...]:
    """Return the containers' requests, in order. Raises Unreadable."""
    found = (_ask(pod, container) for container in pods.lasting_containers(pod))
    return tuple(ask for ask in found if ask is not None)


def holds(pod: pods.Pod) -> tuple[Share, ...]:
    """Return the shares that the annotation of HAMi's scheduler names. Raises Unreadable."""
    written = pods.annotations(pod).get(ALLOCATED)
    if written is None:
        raise Unreadable(f"{pods.name_of(pod)}: no annotation {ALLOCATED}, so its GPU is unknown.")
    before = pods.init_containers(pod)
    names = [str(container.get("name")) for container in (*before, *pods.containers(pod))]
    parts = written.split(";")
    if any(part.strip() for part in parts[len(names) :]):
        raise Unreadable(f"{pods.name_of(pod)}: {ALLOCATED} names more containers than the pod has.")
    # Init containers return their shares when they end, but for sidecars.
    lasting = {str(container.get("name")) for container in pods.lasting_containers(pod)}
    return tuple(
        share
        for name, part in zip(names, parts, strict=False)
        if name in lasting
        for share in _devices(part, name, pods.name_of(pod))
    )


def annotations_for(pod: pods.Pod, shares: Sequence[Share], *, node: str, at_seconds: int) -> dict[str, str]:
    """Return the annotations of these shares as HAMi's scheduler writes them."""
    parts = []
    for container in (*pods.init_containers(pod), *pods.containers(pod)):
        mine = [share for share in shares if share.container == container.get("name")]
        parts.append("".join(f"{share.gpu_uuid},{TYPE},{share.memory_mib},{share.core_request}:" for share in mine))
    devices = "".join(f"{part};" for part in parts)
    return {ALLOCATED: devices, TO_ALLOCATE: devices, NODE: node, TIME: str(at_seconds)}


def quota(hard: Mapping[str, int]) -> dict[str, int]:
    """Return the ResourceQuota's amounts in our resources: HAMi's scheduler counts `limits.`, summed over the GPUs."""
    return {QUOTAS[key]: value for key, value in hard.items() if key in QUOTAS}


def wishes(pod: pods.Pod) -> Wishes:
    """Return what the pod's annotations ask beside its share."""
    said = pods.annotations(pod)
    models, not_models, uuids, not_uuids = (
        split(said.get(key, "")) for key in (USE_MODEL, NOT_MODEL, USE_UUID, NOT_UUID)
    )
    selection = Selection((*models, *without(not_models)), (*uuids, *without(not_uuids)))
    unmet = list(_unmet(said))
    if any(pods.amount(container, PRIORITY) is not None for container in pods.lasting_containers(pod)):
        unmet.append(f"{PRIORITY} is not followed: give the pod a PriorityClass.")
    return Wishes(selection, unmet=tuple(unmet), impossible=tuple(_impossible(pod, said)))


def _ask(pod: pods.Pod, container: pods.Container) -> Ask | None:
    name = str(container.get("name"))
    count, memory, percent, cores = (pods.amount(container, resource) for resource in (COUNT, *SHARING))
    if count is None and memory is None and percent is None and cores is None:
        return None
    # HAMi's webhook adds one GPU if only shares are named.
    count = 1 if count is None else count
    if count == 0:
        return None
    for resource, value in ((MEMORY_PERCENT, percent), (CORES, cores)):
        if value is not None and value > WHOLE:
            raise Unreadable(f"Container {name} asks {resource} {value}: it is percent of each GPU, at most 100.")
    everything = not memory and (percent in (None, 0, WHOLE))
    if cores is None:
        cores = WHOLE if everything else 0
    return Ask(
        name,
        count,
        cores,
        # HAMi limits the cores only if they are named.
        cores or WHOLE,
        memory_mib=memory or None,
        memory_percent=None if memory else (percent or WHOLE),
    )


def _unmet(said: Mapping[str, str]) -> Iterator[str]:
    known = (USE_MODEL, NOT_MODEL, USE_UUID, NOT_UUID, MODE, NUMA)
    for key in sorted(said):
        if key in POLICIES:
            yield f"{key} is not followed: the placement of the cluster and of its pool decides."
        elif key.startswith(("nvidia.com/", "hami.io/")) and not key.startswith((*known, *INDEXES, *WRITTEN)):
            yield f"{key} is not followed: it is not known here."


def _impossible(pod: pods.Pod, said: Mapping[str, str]) -> Iterator[str]:
    mode = said.get(MODE, SHARED_MODE)
    if MIG_MODE in mode and SHARED_MODE not in mode:
        yield (
            f"{MODE} is {mode[: pods.LONGEST]}, and {MEMORY} names no profile: ask for an instance by its profile, as "
            f"{mig_resources.PREFIX}2g.20gb: 1, or leave {MODE} out for a share in the way of {SHARED_MODE}."
        )
    elif SHARED_MODE not in mode:
        yield f"{MODE} is {mode[: pods.LONGEST]}: here a GPU is shared in the way of {SHARED_MODE} only."
    if (found := mig_resources.single_strategy(pod)) is not None:
        label, profile = found
        resource = f"{mig_resources.PREFIX}{(profile or '2g.20gb').replace('+', '.')}"
        by_profile = "" if profile else "by a profile, as "
        yield (
            f"{label} names nodes where {COUNT} is a MIG instance, and not a whole GPU: ask {by_profile}{resource}: 1, "
            f"and leave {label} out."
        )
    if said.get(NUMA, "").lower() in ("1", "t", "true"):
        yield f"{NUMA} is set: GPUs are not chosen by NUMA node; leave it out."
    for key in sorted(said):
        if key.startswith(INDEXES):
            yield f"{key} is set: an index means another GPU on each node; name UUIDs in {USE_UUID}."


def _devices(part: str, container: str, pod: str) -> list[Share]:
    shares = []
    for text in part.split(":"):
        if not text.strip():
            continue
        fields = text.strip().split(",")
        if len(fields) < FIELDS or not fields[0]:
            raise Unreadable(f"{pod}: {ALLOCATED} says {text!r}, which is not uuid,type,MiB,cores.")
        uuid, kind, memory, cores = fields[:FIELDS]
        if kind != TYPE or "[" in uuid:
            raise Unreadable(f"{pod}: {ALLOCATED} names {uuid} of type {kind}: only whole NVIDIA GPUs are taken over.")
        core = min(pods.whole_text(cores, f"{pod}, {ALLOCATED}"), WHOLE)
        mib = pods.whole_text(memory, f"{pod}, {ALLOCATED}")
        shares.append(Share(container, core, core or WHOLE, mib, gpu_uuid=uuid))
    return shares
