"""ResourceSlices of a cluster's nodes: each GPU is a device with consumable capacity. Pure.

A device's capacity is what kube-scheduler may give away in all: the whole GPU, less what others hold of it, less what
its ResourceClaims hold above what was allocated to them. So kube-scheduler's sum and the ledger's are the same, also
after a resize, which changes no allocation.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from agent.wire import DRA_DRIVER as DRIVER
from apps.clusters.core.devices import DEVICE_CLASS
from apps.clusters.dra.requests import CORE, MEMORY, WHOLE, name_device

GROUP = "resource.k8s.io/v1"
PATH = "/apis/resource.k8s.io/v1/resourceslices"
LABELS = {"app.kubernetes.io/managed-by": "gpucloud"}
# Names the pool whose GPUs a slice has, where no device of it does.
POOL_LABEL = "gpucloud.io/pool"
# Keys of taints; all keep new work away, and none ends what runs.
UNHEALTHY, CORDONED, UNREACHABLE = "gpucloud.io/unhealthy", "gpucloud.io/cordoned", "gpucloud.io/unreachable"
# Fewer than a step above the least amount leave no range to choose from.
LEAST_RANGE = 2
LONGEST_VALUE = 63


@dataclass(frozen=True, slots=True)
class GpuDevice:
    """One GPU as it is published: what may be allocated of it, and the taints' keys with their values."""

    uuid: str
    index: int
    model: str
    memory_mib: int
    core_left: int
    memory_left_mib: int
    driver_version: str
    pool: str
    # The GPUs of one node with the same number reach each other by NVLink.
    nvlink: int
    taints: tuple[tuple[str, str], ...] = ()


def device_class() -> dict[str, Any]:
    """Return the DeviceClass by which ResourceClaims ask for shares of GPUs."""
    chosen = [{"cel": {"expression": f"device.driver == '{DRIVER}'"}}]
    return {
        "apiVersion": GROUP, "kind": "DeviceClass", "metadata": {"name": DEVICE_CLASS, "labels": LABELS},
        "spec": {"selectors": chosen},
    }  # fmt: skip


def slice_of(node: str, node_uid: str, gpus: Iterable[GpuDevice]) -> dict[str, Any]:
    """Return the ResourceSlice of a node, which ends with the node."""
    owner = {"apiVersion": "v1", "kind": "Node", "name": node, "uid": node_uid, "controller": True}
    return {
        "apiVersion": GROUP,
        "kind": "ResourceSlice",
        "metadata": {"name": name_slice(node), "labels": LABELS, "ownerReferences": [owner]},
        "spec": {
            "driver": DRIVER,
            "nodeName": node,
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
            "devices": [_device(gpu) for gpu in gpus],
        },
    }


def name_slice(node: str) -> str:
    """Return the name of a node's ResourceSlice: both are DNS subdomains of 253 characters at most."""
    return f"{node[: 252 - len(DRIVER)].rstrip('.-')}-{DRIVER}"


def is_of_pool(item: Mapping[str, Any], pool: str) -> bool:
    """Return True if this ResourceSlice was published for the pool."""
    labels = (item.get("metadata") or {}).get("labels") or {}
    if LABELS.items() <= labels.items():
        if POOL_LABEL in labels:
            return bool(labels[POOL_LABEL] == pool)
        devices = (item.get("spec") or {}).get("devices") or []
        return any((one.get("attributes") or {}).get("pool") == {"string": pool} for one in devices)
    return False


def nvlink_groups(links: Mapping[str, Mapping[str, str]]) -> dict[str, int]:
    """Return a number for each GPU: the same for those that NVLink connects; `links` as the agent reports them."""
    group = {uuid: place for place, uuid in enumerate(sorted(links))}
    for uuid, others in sorted(links.items()):
        for other in (it for it, kind in others.items() if kind == "nvlink" and it in group):
            old, new = sorted((group[uuid], group[other]), reverse=True)
            group = {it: new if place == old else place for it, place in group.items()}
    return group


def _device(gpu: GpuDevice) -> dict[str, Any]:
    attributes: dict[str, Any] = {
        "uuid": {"string": gpu.uuid}, "model": {"string": gpu.model[:64]}, "index": {"int": gpu.index},
        "pool": {"string": gpu.pool}, "nvlink": {"int": gpu.nvlink},
        "driverVersion": {"string": gpu.driver_version[:64]},
    }  # fmt: skip
    device: dict[str, Any] = {
        "name": name_device(gpu.uuid),
        "attributes": attributes,
        "capacity": {
            CORE: _capacity(max(0, gpu.core_left), WHOLE, ""),
            MEMORY: _capacity(max(0, gpu.memory_left_mib), gpu.memory_mib, "Mi"),
        },
        "allowMultipleAllocations": True,
    }
    return device | taints_of(gpu.taints)


def taints_of(taints: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """Return a device's taints as its field; nothing if there are none."""
    made = [{"key": key, "value": _label(value), "effect": "NoSchedule"} for key, value in sorted(taints)]
    return {"taints": made} if made else {}


def _capacity(left: int, whole: int, unit: str) -> dict[str, Any]:
    """Return a capacity of which a request may have 1 to `whole`, as far as it is left."""
    capacity: dict[str, Any] = {"value": f"{left}{unit}"}
    if left >= LEAST_RANGE:
        most = f"{min(left, whole)}{unit}"
        steps = {"min": f"1{unit}", "max": most, "step": f"1{unit}"}
        capacity["requestPolicy"] = {"default": most, "validRange": steps}
    return capacity


def _label(text: str) -> str:
    """Return the text as a label's value, as a taint's value must be."""
    kept = "".join(one if one.isascii() and (one.isalnum() or one in "-_.") else "-" for one in text)
    return kept[:LONGEST_VALUE].strip("-_.")
