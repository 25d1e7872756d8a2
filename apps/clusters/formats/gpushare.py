"""Format of gpushare: `aliyun.com/gpu-mem`, memory of one GPU for all containers of a pod, without compute.

The cluster chooses the unit: GiB, or MiB if its device plugin is configured so (`GPUSHARE_UNIT_MIB`). Annotations name
the GPU by index.
"""

from collections.abc import Mapping, Sequence

from apps.clusters.formats import pods
from apps.clusters.formats.asks import WHOLE, Ask, Share, Unreadable
from apps.clusters.formats.guarded import Guarded
from apps.clusters.formats.wishes import Wishes

NAME = "gpushare"
MEMORY = "aliyun.com/gpu-mem"
COUNT = "aliyun.com/gpu-count"
RESOURCES = (MEMORY,)
GIB = 1024
# More than any GPU has: who asks it counts in another unit.
MOST_MIB = 1 << 20
QUOTAS = {f"requests.{MEMORY}": "memory_mib"}
INDEX = "ALIYUN_COM_GPU_MEM_IDX"
BY_POD = "ALIYUN_COM_GPU_MEM_POD"
BY_DEVICE = "ALIYUN_COM_GPU_MEM_DEV"
ASSIGNED = "ALIYUN_COM_GPU_MEM_ASSIGNED"
ASSUME_TIME = "ALIYUN_COM_GPU_MEM_ASSUME_TIME"
GUARDED = Guarded(annotations=(INDEX, BY_POD, BY_DEVICE, ASSIGNED, ASSUME_TIME))
WRITERS = ("gpushare-schd-extender", "gpushare-device-plugin")
SCHEDULERS: tuple[str, ...] = ()
IMPORTED_ONLY = False


def asks(pod: pods.Pod, *, unit_mib: int = GIB) -> tuple[Ask, ...]:
    """Return the pod's request: none or one. Raises Unreadable."""
    memory = units(pod)
    if memory * unit_mib > MOST_MIB:
        raise Unreadable(
            f"{pods.name_of(pod)} asks {MEMORY} {memory}, in units of {unit_mib} MiB, which is more than any GPU has. "
            "If the cluster counts in MiB, set GPUSHARE_UNIT_MIB=1 on the server."
        )
    return (Ask("", 1, 0, WHOLE, memory_mib=memory * unit_mib),) if memory else ()


def units(pod: pods.Pod) -> int:
    """Return the sum of the containers' requests, in the cluster's unit. Raises Unreadable."""
    return sum(pods.amount(container, MEMORY) or 0 for container in pods.lasting_containers(pod))


def holds(pod: pods.Pod, *, unit_mib: int = GIB) -> tuple[Share, ...]:
    """Return the share that the annotations of gpushare's extender name. Raises Unreadable."""
    said = pods.annotations(pod)
    if INDEX not in said:
        raise Unreadable(f"{pods.name_of(pod)}: no annotation {INDEX}, so its GPU is unknown.")
    index = pods.whole_text(said[INDEX], f"{pods.name_of(pod)}, {INDEX}")
    memory = pods.whole_text(said[BY_POD], f"{pods.name_of(pod)}, {BY_POD}") if BY_POD in said else units(pod)
    if memory == 0:
        raise Unreadable(f"{pods.name_of(pod)}: it is on GPU {index} and asks no {MEMORY}.")
    return (Share("", 0, WHOLE, memory * unit_mib, gpu_index=index),)


def annotations_for(
    pod: pods.Pod, shares: Sequence[Share], *, at_ns: int, gpu_memory_mib: int, unit_mib: int = GIB
) -> dict[str, str]:
    """Return the annotations of this share as gpushare's extender writes them."""
    (share,) = shares
    return {
        INDEX: str(share.gpu_index),
        BY_DEVICE: str(gpu_memory_mib // unit_mib),
        BY_POD: str(units(pod)),
        ASSIGNED: "false",
        ASSUME_TIME: str(at_ns),
    }


def quota(hard: Mapping[str, int], *, unit_mib: int = GIB) -> dict[str, int]:
    """Return the ResourceQuota's amounts in our resources."""
    return {QUOTAS[key]: value * unit_mib for key, value in hard.items() if key in QUOTAS}


def wishes(pod: pods.Pod) -> Wishes:
    """Return nothing: gpushare's pods ask a share only."""
    del pod
    return Wishes()
