"""GPUs in MIG mode by NVML: profiles, placements and instances.

Like all of NVML, blocking: from the NVML thread only. The mode itself is an operator's: nothing here changes it.
"""

import ctypes
from typing import Any, NamedTuple

import pynvml as nvml

from agent.wire_mig import Mig, MigPlace, MigProfile

MIB = 1 << 20
# NVML names a profile "MIG 2g.35gb".
PREFIX = "MIG "
# Variants with media engines or graphics ("1g.18gb+me"): a GPU has few of them, and no claim can ask for one.
VARIANT = "+"


class Kind(NamedTuple):
    """A profile of the GPU, as NVML knows it."""

    id: int
    most: int
    profile: MigProfile


class Instance(NamedTuple):
    """A GPU instance that there is, and NVML's handle of it."""

    id: int
    place: MigPlace
    handle: Any


def is_enabled(handle: Any) -> bool:
    """Return True if the GPU is in MIG mode now; a GPU without MIG is not."""
    try:
        return bool(nvml.nvmlDeviceGetMigMode(handle)[0])
    except (nvml.NVMLError, AttributeError):
        return False


def describe(handle: Any, own: frozenset[int]) -> Mig | None:
    """Return the GPU's profiles and foreign instances; None if it is not in MIG mode.

    `own`: the first slices of the instances that the agent made.
    """
    if not is_enabled(handle):
        return None
    try:
        kinds = read_kinds(handle)
        foreign = [one.place for one in read_instances(handle, kinds) if one.place.start not in own]
    except (nvml.NVMLError, AttributeError):
        # Not root, or a driver before 525, which does not name profiles: the check `mig` says so.
        return Mig(profiles=[])
    return Mig(profiles=[kind.profile for kind in kinds if VARIANT not in kind.profile.name], foreign=foreign)


def read_kinds(handle: Any) -> list[Kind]:
    """Return every profile of the GPU, whatever instances there are. Raises NVMLError."""
    found = []
    for index in range(nvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
        try:
            info = nvml.nvmlDeviceGetGpuInstanceProfileInfo(handle, index, version=2)
        except (nvml.NVMLError_NotSupported, nvml.NVMLError_InvalidArgument):
            continue
        name = info.name.decode() if isinstance(info.name, bytes) else info.name
        starts = _read_starts(handle, info.id)
        if not starts:
            continue
        profile = MigProfile(
            name=name.removeprefix(PREFIX),
            compute_slices=info.sliceCount,
            memory_bytes=info.memorySizeMB * MIB,
            size=starts[0][1],
            starts=sorted(start for start, _ in starts),
        )
        found.append(Kind(info.id, info.instanceCount, profile))
    return found


def read_instances(handle: Any, kinds: list[Kind]) -> list[Instance]:
    """Return every instance of the GPU, whoever made it. Raises NVMLError."""
    found = []
    for kind in kinds:
        handles = (nvml.c_nvmlGpuInstance_t * kind.most)()
        count = ctypes.c_uint(kind.most)
        nvml.nvmlDeviceGetGpuInstances(handle, kind.id, handles, ctypes.byref(count))
        for one in handles[: count.value]:
            info = nvml.nvmlGpuInstanceGetInfo(one)
            place = MigPlace(profile=kind.profile.name, start=info.placement.start, size=info.placement.size)
            found.append(Instance(info.id, place, one))
    return found


def _read_starts(handle: Any, profile_id: int) -> list[tuple[int, int]]:
    """Return the (first slice, slices) at which an instance of the profile may be made. Raises NVMLError."""
    count = ctypes.c_uint()
    nvml.nvmlDeviceGetGpuInstancePossiblePlacements(handle, profile_id, None, ctypes.byref(count))
    places = (nvml.c_nvmlGpuInstancePlacement_t * count.value)()
    nvml.nvmlDeviceGetGpuInstancePossiblePlacements(handle, profile_id, places, ctypes.byref(count))
    return [(place.start, place.size) for place in places[: count.value]]


class Made(NamedTuple):
    """A MIG device: what programs use."""

    # NVML's name of it, `MIG-…`.
    device: str
    gpu_instance: int
    compute_instance: int


class NotOurs(Exception):
    """An instance that was not made as this agent makes one: it is left alone. The message says why."""


def make(handle: Any, place: MigPlace, *, may_exist: bool) -> Made:
    """Make the instance at this place, with one compute instance of all its slices. Raises NVMLError, NotOurs.

    `may_exist`: an earlier agent may have begun; then what is there is completed.
    """
    kinds = read_kinds(handle)
    kind = next((kind for kind in kinds if kind.profile.name == place.profile), None)
    if kind is None:
        raise NotOurs(f"the GPU has no MIG profile {place.profile}")
    found = _find(handle, kinds, place) if may_exist else None
    if found is not None:
        instance = found.handle
    else:
        wanted = nvml.c_nvmlGpuInstancePlacement_t(place.start, place.size)
        instance = nvml.nvmlDeviceCreateGpuInstanceWithPlacement(handle, kind.id, ctypes.byref(wanted))
    whole = _whole_compute(instance, kind.profile.compute_slices)
    if not _compute_instances(instance, whole):
        nvml.nvmlGpuInstanceCreateComputeInstance(instance, whole.id)
    return _device_of(handle, nvml.nvmlGpuInstanceGetInfo(instance).id)


def use(handle: Any, place: MigPlace) -> Made:
    """Return the device of the instance that an operator made at this place. Raises NVMLError, NotOurs."""
    found = _find(handle, kinds := read_kinds(handle), place)
    if found is None:
        raise NotOurs(f"none is at slice {place.start}, and the pool's are static: an operator makes them")
    slices = next(kind.profile.compute_slices for kind in kinds if kind.profile.name == place.profile)
    if not _compute_instances(found.handle, _whole_compute(found.handle, slices)):
        raise NotOurs("the one that is there has no compute instance with all of its slices (nvidia-smi mig -cci)")
    return _device_of(handle, found.id)


def remove(handle: Any, place: MigPlace) -> bool:
    """Remove the instance at this place, its compute instance first; return False if there is none.

    Raises NVMLError_InUse while programs use it.
    """
    found = _find(handle, kinds := read_kinds(handle), place)
    if found is None:
        return False
    slices = next(kind.profile.compute_slices for kind in kinds if kind.profile.name == place.profile)
    for compute in _compute_instances(found.handle, _whole_compute(found.handle, slices)):
        nvml.nvmlComputeInstanceDestroy(compute)
    nvml.nvmlGpuInstanceDestroy(found.handle)
    return True


def find_device(handle: Any, place: MigPlace) -> Made | None:
    """Return the MIG device at this place; None if there is no whole one. Raises NVMLError."""
    found = _find(handle, read_kinds(handle), place)
    try:
        return _device_of(handle, found.id) if found is not None else None
    except NotOurs:
        return None


def _find(handle: Any, kinds: list[Kind], place: MigPlace) -> Instance | None:
    return next((one for one in read_instances(handle, kinds) if one.place == place), None)


def _whole_compute(instance: Any, slices: int) -> Any:
    """Return the profile of a compute instance with all slices of the GPU instance. Raises NotOurs."""
    for index in range(nvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
        try:
            info = nvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(
                instance, index, nvml.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED
            )
        except (nvml.NVMLError_NotSupported, nvml.NVMLError_InvalidArgument):
            continue
        if info.sliceCount == slices:
            return info
    raise NotOurs(f"the driver has no compute instance of {slices} slices")


def _compute_instances(instance: Any, whole: Any) -> list[Any]:
    handles = (nvml.c_nvmlComputeInstance_t * whole.instanceCount)()
    count = ctypes.c_uint(whole.instanceCount)
    nvml.nvmlGpuInstanceGetComputeInstances(instance, whole.id, handles, ctypes.byref(count))
    return list(handles[: count.value])


def _device_of(handle: Any, gpu_instance: int) -> Made:
    for index in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        try:
            device = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)
        except nvml.NVMLError_NotFound:
            continue
        if nvml.nvmlDeviceGetGpuInstanceId(device) == gpu_instance:
            name = nvml.nvmlDeviceGetUUID(device)
            text = name.decode() if isinstance(name, bytes) else name
            return Made(text, gpu_instance, nvml.nvmlDeviceGetComputeInstanceId(device))
    raise NotOurs(f"GPU instance {gpu_instance} has no MIG device")
