"""ResourceSlices of GPUs in MIG mode: each place of an instance is a device that consumes memory slices. Pure.

These are partitionable devices (KEP-4815): the memory slices of a GPU are counters of one each, a device of four slices
consumes four of them, and kube-scheduler allocates devices that share none. A slice that somebody else has, beside
kube-scheduler, is a counter of zero. A GPU is a pool of two ResourceSlices: one has counters or devices, not both.

Names and attributes follow NVIDIA's driver (github.com/kubernetes-sigs/dra-driver-nvidia-gpu): `type`, `profile`,
`parentUUID`, counters `memory-slice-0`. The instance is made when the claim is placed.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from agent.wire import DRA_DRIVER as DRIVER
from apps.clusters.core.devices import class_of_profile
from apps.clusters.dra import slices
from apps.clusters.dra.requests import MIG_TYPE, name_device, name_instance
from apps.clusters.formats.mig_resources import PREFIX
from apps.scheduling.core.mig import Mig, Profile, core_percent

COUNTERS = "memory-slices"
# The API server takes so many devices in a slice with consumed counters (1.36).
MOST_DEVICES = 64


@dataclass(frozen=True, slots=True)
class MigDevice:
    """One GPU in MIG mode; `mig.used` are the slices that are not kube-scheduler's to give."""

    uuid: str
    index: int
    model: str
    driver_version: str
    pool: str
    mig: Mig
    taints: tuple[tuple[str, str], ...] = ()

    @property
    def profiles(self) -> tuple[Profile, ...]:
        """The profiles that have a place."""
        return tuple(profile for profile in self.mig.profiles if profile.starts)


class Place(NamedTuple):
    """A place of an instance."""

    profile: Profile
    start: int


def places(mig: Mig) -> Iterator[Place]:
    """Yield every place; of each profile first the one that takes the least room: kube-scheduler takes the first."""
    empty = mig._replace(used=0)
    for profile in mig.profiles:
        for start in sorted(profile.starts, key=lambda start: (empty.price(profile, start), -start)):
            yield Place(profile, start)


def class_of(profile: str, *, as_resource: bool) -> dict[str, Any]:
    """Return the DeviceClass of a profile. `as_resource`: pods may ask for it as `nvidia.com/mig-…`, too."""
    of_type = f"device.attributes['{DRIVER}'].type == '{MIG_TYPE}'"
    of_profile = f"device.attributes['{DRIVER}'].profile == '{profile}'"
    # Devices that are no instances have no such attributes: the order of the conditions matters.
    expression = f"device.driver == '{DRIVER}' && 'type' in device.attributes['{DRIVER}'] && {of_type} && {of_profile}"
    spec: dict[str, Any] = {"selectors": [{"cel": {"expression": expression}}]}
    if as_resource:
        spec["extendedResourceName"] = f"{PREFIX}{profile}"
    return {
        "apiVersion": slices.GROUP,
        "kind": "DeviceClass",
        "metadata": {"name": class_of_profile(profile), "labels": slices.LABELS},
        "spec": spec,
    }


def counters_of(node: str, node_uid: str, gpu: MigDevice) -> dict[str, Any]:
    """Return the ResourceSlice with the GPU's memory slices."""
    total = max((start + profile.size for profile, start in places(gpu.mig)), default=1)
    free = {_counter(place): {"value": "0" if gpu.mig.used >> place & 1 else "1"} for place in range(total)}
    return _slice(node, node_uid, gpu, "counters", {"sharedCounters": [{"name": COUNTERS, "counters": free}]})


def devices_of(node: str, node_uid: str, gpu: MigDevice) -> dict[str, Any]:
    """Return the ResourceSlice with the places of the GPU's instances."""
    found = [_device(gpu, place) for place in places(gpu.mig)]
    return _slice(node, node_uid, gpu, "devices", {"devices": found[:MOST_DEVICES]})


# The two slices of a GPU.
PARTS = {"counters": counters_of, "devices": devices_of}


def name_slice(node: str, gpu: MigDevice, part: str) -> str:
    """Return the name of one of the GPU's two ResourceSlices, a DNS subdomain."""
    ends = f"-{name_device(gpu.uuid)}-{part}-{DRIVER}"
    return f"{node[: 253 - len(ends)].rstrip('.-')}{ends}"


def profiles_in(item: Mapping[str, Any]) -> set[str]:
    """Return the profiles of a published ResourceSlice's devices."""
    devices = (item.get("spec") or {}).get("devices") or []
    return {str(said["profile"]["string"]) for one in devices if "profile" in (said := one.get("attributes") or {})}


def profiles_of(gpus: Iterable[MigDevice]) -> set[str]:
    """Return the names of the profiles that these GPUs have places for."""
    return {profile.name for gpu in gpus for profile in gpu.profiles}


def _slice(node: str, node_uid: str, gpu: MigDevice, part: str, more: dict[str, Any]) -> dict[str, Any]:
    made = slices.slice_of(node, node_uid, ())
    made["metadata"] |= {
        "name": name_slice(node, gpu, part),
        "labels": {**slices.LABELS, slices.POOL_LABEL: gpu.pool},
    }
    del made["spec"]["devices"]
    pool = {"name": f"{node}/{name_device(gpu.uuid)}", "generation": 1, "resourceSliceCount": 2}
    made["spec"] |= {"pool": pool, **more}
    return made


def _device(gpu: MigDevice, place: Place) -> dict[str, Any]:
    profile, start = place
    attributes: dict[str, Any] = {
        "type": {"string": MIG_TYPE}, "profile": {"string": profile.name}, "parentUUID": {"string": gpu.uuid},
        "parentIndex": {"int": gpu.index}, "placementStart": {"int": start}, "placementSize": {"int": profile.size},
        "core": {"int": core_percent(profile, gpu.mig.profiles)}, "memoryMib": {"int": profile.memory_mib},
        "model": {"string": gpu.model[:64]}, "pool": {"string": gpu.pool},
        "driverVersion": {"string": gpu.driver_version[:64]},
    }  # fmt: skip
    consumed = {_counter(each): {"value": "1"} for each in range(start, start + profile.size)}
    device: dict[str, Any] = {
        "name": name_instance(gpu.uuid, profile.name, start),
        "attributes": attributes,
        "consumesCounters": [{"counterSet": COUNTERS, "counters": consumed}],
    }
    return device | slices.taints_of(gpu.taints)


def _counter(place: int) -> str:
    return f"memory-slice-{place}"
