"""The machine's GPUs by NVML, real or simulated: the inventory, and what each GPU does.

Every call here may block for milliseconds (a driver under load: seconds): call from a thread, one call at a time. A
missing or broken NVML is a fact to report, never an error that ends the agent.
"""

import contextlib
import ctypes
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import msgspec
import pynvml as nvml

from agent import wire
from agent.host import memory_limits, mig, numa
from agent.logs import log

# Errors of the driver and not of one GPU: all of NVML is opened again.
NOT_OF_ONE = (
    nvml.NVMLError_Uninitialized,
    nvml.NVMLError_DriverNotLoaded,
    nvml.NVMLError_LibraryNotFound,
    nvml.NVMLError_LibRmVersionMismatch,
    nvml.NVMLError_FunctionNotFound,
)

# Errors of a call that this driver or device does not know in that version.
NO_SECOND_VERSION = (
    nvml.NVMLError_FunctionNotFound,
    nvml.NVMLError_NotSupported,
    nvml.NVMLError_ArgumentVersionMismatch,
)


class Inventory(NamedTuple):
    """The GPUs and the driver of the machine."""

    gpus: tuple[wire.Gpu, ...] = ()
    driver_version: str = "none"
    # The reason, in words, why there are no GPUs; None if NVML answered.
    problem: str | None = None
    # The number of /dev/nvidia<number>, by uuid; left out if the driver has none (a simulated one).
    minors: dict[str, int] = {}
    # The memory node (NUMA), by uuid; left out if the machine does not say.
    memory_nodes: dict[str, int] = {}
    # True if the driver can limit control groups' memory (memory_limits.py).
    limits_memory: bool = False

    @property
    def divided(self) -> frozenset[str]:
        """The GPUs in MIG mode."""
        return frozenset(gpu.uuid for gpu in self.gpus if gpu.mig is not msgspec.UNSET)


class Listed(NamedTuple):
    """A process that NVML lists on a GPU."""

    # The GPU, or the MIG device.
    gpu_uuid: str
    # As the kernel's first pid namespace counts.
    pid: int
    # None if this driver does not say.
    memory_bytes: int | None
    # The GPU of a MIG device; empty: `gpu_uuid` is the GPU.
    divided_gpu: str = ""

    @property
    def physical_gpu(self) -> str:
        """The GPU that the process is on, whether or not in a MIG device of it."""
        return self.divided_gpu or self.gpu_uuid


class Memory(NamedTuple):
    """A GPU's device memory, usable by programs and used by them, in bytes."""

    usable_bytes: int
    used_bytes: int


class _Found(NamedTuple):
    """A GPU that answers."""

    number: int
    handle: Any
    model: str
    # Without the card's own reserve.
    memory_bytes: int


class OwnInstances(Protocol):
    """The MIG instances that an agent made."""

    def own(self) -> frozenset[tuple[str, int]]:
        """Return the GPU and the first slice of each instance."""

    def devices(self) -> dict[tuple[str, int], str]:
        """Return the devices by GPU and NVML's number of their GPU instance."""


class Nvml:
    """NVML, opened when possible and opened again after a failure.

    `library` names the file to load before pynvml looks for one by name (the simulated driver's); None for the system's
    own.

    `instances`: the MIG instances that this agent made; None: it makes none.
    """

    def __init__(self, library: Path | None = None, instances: "OwnInstances | None" = None) -> None:
        self._library = library
        self._own_instances = instances.own if instances is not None else frozenset[tuple[str, int]]
        self._own_devices = instances.devices if instances is not None else dict[tuple[str, int], str]
        self._open = False
        self._handles: dict[str, Any] = {}
        # As last described; also those that fell off the bus or stopped answering since.
        self._known: dict[str, wire.Gpu] = {}
        # Indexes that NVML counts and that did not answer at the last inventory, known or not.
        self._silent: set[int] = set()
        # The time of the last sample of processes' shares, by uuid, as NVML counts.
        self._shared_at: dict[str, int] = {}
        self._looks = 0
        # The last inventory that NVML answered.
        self.latest = Inventory()

    @property
    def handles(self) -> dict[str, Any]:
        """NVML's handles of the last inventory, by uuid."""
        return self._handles

    @property
    def lost(self) -> list[str]:
        """GPUs that NVML counts and did not reach at the last inventory."""
        return [uuid for uuid in self._known if uuid not in self._handles]

    @property
    def complete(self) -> bool:
        """True if each GPU that NVML counted at the last inventory answered."""
        return not self._silent

    def inventory(self) -> Inventory:
        """Return every GPU that there is now, with its links to the others."""
        try:
            self._ensure_open()
            found, silent = self._find()
            self._handles = {uuid: gpu.handle for uuid, gpu in found.items()}
            # A GPU that no longer answers stays in the inventory, with its assignments; a condition gives its state.
            kept = {uuid: gpu for uuid, gpu in self._known.items() if uuid not in found and gpu.index in silent}
            self._known = kept | {uuid: self._describe(uuid, gpu) for uuid, gpu in found.items()}
            self._silent = silent
            gpus = tuple(sorted(self._known.values(), key=lambda gpu: gpu.index))
            minors = self._ask_all(nvml.nvmlDeviceGetMinorNumber)
            # It is not known anew of GPUs that do not answer.
            known = (memory_limits.is_known(handle) for handle in self._handles.values())
            limits_memory = any(known) if self._handles else self.latest.limits_memory
            version = _text(nvml.nvmlSystemGetDriverVersion())
            nodes = self.latest.memory_nodes | self._ask_all(numa.read_node)
            inventory = Inventory(gpus, version, minors=minors, memory_nodes=nodes, limits_memory=limits_memory)
            self.latest = inventory
            if silent and not found:
                # All at once: this opening of NVML itself may no longer be valid.
                self._close()
            return inventory
        except (nvml.NVMLError, OSError) as error:
            self._close()
            return Inventory(problem=_describe_error(error))

    def sample(self) -> list[wire.GpuUsage]:
        """Return the present usage of each GPU of the last inventory; leave out one that does not answer."""
        usages = []
        for uuid, handle in self._handles.items():
            try:
                usages.append(_sample(uuid, handle))
            except nvml.NVMLError:
                continue
        return usages

    def read_free(self) -> dict[str, int]:
        """Return the bytes that are free on each GPU of the last inventory; leave out one that does not answer."""
        free = {}
        for uuid, handle in self._handles.items():
            with contextlib.suppress(nvml.NVMLError):
                memory = read_memory(handle)
                free[uuid] = memory.usable_bytes - memory.used_bytes
        return free

    def processes(self) -> list[Listed]:
        """Return the computing processes on each GPU of the last inventory; leave out one that does not answer.

        Of a GPU in MIG mode, they are those in the instances that this agent made.
        """
        found: list[Listed] = []
        devices, divided = self._own_devices(), self.latest.divided
        for uuid, handle in self._handles.items():
            running = optional(nvml.nvmlDeviceGetComputeRunningProcesses, handle) or ()
            if uuid not in divided:
                found += [Listed(uuid, int(one.pid), one.usedGpuMemory) for one in running]
                continue
            placed = ((one, devices.get((uuid, int(one.gpuInstanceId)))) for one in running)
            found += [Listed(device, int(one.pid), one.usedGpuMemory, uuid) for one, device in placed if device]
        return found

    def mps_clients(self) -> set[int]:
        """Return the pids of programs that compute by an MPS server."""
        lists = (optional(nvml.nvmlDeviceGetMPSComputeRunningProcesses, handle) for handle in self._handles.values())
        return {int(one.pid) for running in lists for one in running or ()}

    def drawing(self) -> set[int]:
        """Return the pids of processes that draw: display servers, and programs that both draw and compute."""
        lists = (optional(nvml.nvmlDeviceGetGraphicsRunningProcesses, handle) for handle in self._handles.values())
        return {int(one.pid) for running in lists for one in running or ()}

    def list_processes(self) -> tuple[list[Listed], set[int], dict[str, dict[int, float]]]:
        """Return the computing processes, the drawing pids, and at every second call the processes' shares."""
        running = self.processes()
        self._looks += 1
        return running, self.drawing(), self.shares() if running and self._looks % 2 else {}

    def shares(self) -> dict[str, dict[int, float]]:
        """Return the percent of its GPU that each process used lately, by uuid and pid.

        GPUs without a new sample are left out, and so are processes that used nothing.
        """
        found: dict[str, dict[int, float]] = {}
        for uuid, handle in self._handles.items():
            samples = optional(nvml.nvmlDeviceGetProcessUtilization, handle, self._shared_at.get(uuid, 0))
            if samples:
                self._shared_at[uuid] = max(int(one.timeStamp) for one in samples)
                found[uuid] = {int(one.pid): float(one.smUtil) for one in samples}
        return found

    def _ask_all(self, ask: Any) -> dict[str, int]:
        """Return the answers about the GPUs that answer, by uuid, without those that have none."""
        answers = {uuid: optional(ask, handle) for uuid, handle in self._handles.items()}
        return {uuid: int(answer) for uuid, answer in answers.items() if answer is not None}

    def _ensure_open(self) -> None:
        if self._open:
            return
        if self._library is not None:
            # Once loaded by path, the library also answers to its name, which pynvml asks for.
            ctypes.CDLL(str(self._library), mode=ctypes.RTLD_GLOBAL)
        nvml.nvmlInit()
        self._open = True

    def _close(self) -> None:
        self._handles = {}
        if self._open:
            self._open = False
            with contextlib.suppress(nvml.NVMLError):
                nvml.nvmlShutdown()

    def _find(self) -> tuple[dict[str, _Found], set[int]]:
        """Return each GPU that answers, by uuid, and the indexes of the others: one sick GPU does not hide the rest.

        If none answers and none did before, raise the first one's error: it says more than an empty list.
        """
        found: dict[str, _Found] = {}
        errors: dict[int, nvml.NVMLError] = {}
        for index in range(nvml.nvmlDeviceGetCount()):
            try:
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
                model, memory = _text(nvml.nvmlDeviceGetName(handle)), read_memory(handle)
                found[_text(nvml.nvmlDeviceGetUUID(handle))] = _Found(index, handle, model, memory.usable_bytes)
            except NOT_OF_ONE:
                raise
            except nvml.NVMLError as error:
                errors[index] = error
                if index not in self._silent:
                    log.warning("gpu-does-not-answer", index=index, reason=str(error))
        if errors and not found and not self._known:
            raise next(iter(errors.values()))
        return found, set(errors)

    def _describe(self, uuid: str, gpu: _Found) -> wire.Gpu:
        own = frozenset(start for other, start in self._own_instances() if other == uuid)
        return wire.Gpu(
            uuid=uuid,
            index=gpu.number,
            model=gpu.model,
            memory_bytes=gpu.memory_bytes,
            links={
                other: link
                for other, peer in self._handles.items()
                if other != uuid and (link := _link(gpu.handle, peer)) is not None
            },
            mig=mig.describe(gpu.handle, own) or msgspec.UNSET,
        )


def read_memory(handle: Any) -> Memory:
    """Read a GPU's memory. Raises NVMLError.

    NVML's total counts the card's own reserve: on an H200 615 of 143,771 MiB (driver 580), which no program can
    allocate; the rest is what CUDA calls the total. If the call has no second version (before driver 510), NVML does
    not tell the two apart.
    """
    try:
        memory = nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
        usable = int(memory.total) - int(memory.reserved)
        # Not its `used`: NVIDIA's reference counts reserved memory in it, driver 580 does not.
        return Memory(usable, usable - int(memory.free))
    except NO_SECOND_VERSION:
        memory = nvml.nvmlDeviceGetMemoryInfo(handle)
        return Memory(int(memory.total), int(memory.used))


def _sample(uuid: str, handle: Any) -> wire.GpuUsage:
    memory = read_memory(handle)
    milliwatts = optional(nvml.nvmlDeviceGetPowerUsage, handle)
    temperature = optional(nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU)
    utilisation = optional(nvml.nvmlDeviceGetUtilizationRates, handle)
    sm_clock = optional(nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_SM)
    memory_clock = optional(nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_MEM)
    return wire.GpuUsage(
        uuid=uuid,
        core_percent=float(utilisation.gpu) if utilisation is not None else 0.0,
        memory_bytes=memory.used_bytes,
        power_watts=milliwatts / 1000 if milliwatts is not None else None,
        temperature_celsius=float(temperature) if temperature is not None else None,
        sm_clock_mhz=int(sm_clock) if sm_clock is not None else None,
        memory_clock_mhz=int(memory_clock) if memory_clock is not None else None,
    )


def _link(handle: Any, peer: Any) -> str | None:
    """Return the nearest common ancestor of two GPUs, or "nvlink"; None if the driver cannot tell."""
    if optional(nvml.nvmlDeviceGetP2PStatus, handle, peer, nvml.NVML_P2P_CAPS_INDEX_NVLINK) == nvml.NVML_P2P_STATUS_OK:
        return "nvlink"
    level = optional(nvml.nvmlDeviceGetTopologyCommonAncestor, handle, peer)
    if level is None:
        return None
    if level <= nvml.NVML_TOPOLOGY_HOSTBRIDGE:
        return "pcie"
    return "numa" if level <= nvml.NVML_TOPOLOGY_NODE else "system"


def optional(ask: Any, *arguments: Any) -> Any:
    """Return the answer; None if this device or driver has none (a simulated one may lack the symbol)."""
    try:
        return ask(*arguments)
    except (nvml.NVMLError, AttributeError):
        return None


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _describe_error(error: Exception) -> str:
    if isinstance(error, nvml.NVMLError_LibraryNotFound):
        return "NVML (libnvidia-ml.so.1) is not on this machine: no NVIDIA driver is installed"
    return f"NVML does not answer: {error}"
