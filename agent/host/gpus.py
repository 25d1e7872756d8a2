"""The machine's GPUs as NVML shows them, real or simulated: what there is, and what it is doing.

Every call here may block for milliseconds (a driver under load: seconds): call from a thread, one call at a time.
NVML that is missing or broken is a fact to report, never an error that ends the agent.
"""

import contextlib
import ctypes
from pathlib import Path
from typing import Any, NamedTuple

import pynvml as nvml
import structlog

from agent import wire
from agent.host import memory_limits

log = structlog.get_logger()

# Said of the driver and not of one GPU: all of NVML is opened again.
NOT_OF_ONE = (
    nvml.NVMLError_Uninitialized,
    nvml.NVMLError_DriverNotLoaded,
    nvml.NVMLError_LibraryNotFound,
    nvml.NVMLError_LibRmVersionMismatch,
    nvml.NVMLError_FunctionNotFound,
)

# Said of a call that this driver or device does not know in that version.
NO_SECOND_VERSION = (
    nvml.NVMLError_FunctionNotFound,
    nvml.NVMLError_NotSupported,
    nvml.NVMLError_ArgumentVersionMismatch,
)


class Inventory(NamedTuple):
    """What the machine has."""

    gpus: tuple[wire.Gpu, ...] = ()
    driver_version: str = "none"
    # Why there are no GPUs, in words; None where NVML answered.
    problem: str | None = None
    # The number of /dev/nvidia<number>, by uuid; left out where the driver has none (a simulated one).
    minors: dict[str, int] = {}
    # Whether the driver can limit control groups' memory (memory_limits.py).
    limits_memory: bool = False


class Listed(NamedTuple):
    """A process that NVML shows on a GPU."""

    gpu_uuid: str
    # As the kernel's first pid namespace counts.
    pid: int
    # None where this driver does not say.
    memory_bytes: int | None


class Memory(NamedTuple):
    """A GPU's device memory: what programs can have of it, and what they have, in bytes."""

    usable_bytes: int
    used_bytes: int


class _Found(NamedTuple):
    """A GPU that answers."""

    number: int
    handle: Any
    model: str
    # Without what the card keeps for itself.
    memory_bytes: int


class Nvml:
    """NVML, opened when it can be and opened again when it could not.

    `library` names the file to load before pynvml looks for one by name (the simulated driver's); None for the
    system's own.
    """

    def __init__(self, library: Path | None = None) -> None:
        self._library = library
        self._open = False
        self._handles: dict[str, Any] = {}
        # As last described; those that fell off the bus or no longer answer since, too.
        self._known: dict[str, wire.Gpu] = {}
        # Indexes of those that NVML counts and that did not answer at the last inventory, known or not.
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
        """Whether each GPU that NVML counted at the last inventory answered."""
        return not self._silent

    def inventory(self) -> Inventory:
        """Every GPU there is now, with its links to the others."""
        try:
            self._ensure_open()
            found, silent = self._find()
            self._handles = {uuid: gpu.handle for uuid, gpu in found.items()}
            # One that no longer answers stays the node's, with what is promised of it; a condition says how it is.
            kept = {uuid: gpu for uuid, gpu in self._known.items() if uuid not in found and gpu.index in silent}
            self._known = kept | {uuid: self._describe(uuid, gpu) for uuid, gpu in found.items()}
            self._silent = silent
            gpus = tuple(sorted(self._known.values(), key=lambda gpu: gpu.index))
            minors = {uuid: optional(nvml.nvmlDeviceGetMinorNumber, handle) for uuid, handle in self._handles.items()}
            there = {uuid: minor for uuid, minor in minors.items() if minor is not None}
            # Of GPUs that do not answer it is not known anew.
            known = (memory_limits.is_known(handle) for handle in self._handles.values())
            limits_memory = any(known) if self._handles else self.latest.limits_memory
            version = _text(nvml.nvmlSystemGetDriverVersion())
            inventory = Inventory(gpus, version, minors=there, limits_memory=limits_memory)
            self.latest = inventory
            if silent and not found:
                # All at once: it may be this opening of NVML that no longer holds.
                self._close()
            return inventory
        except (nvml.NVMLError, OSError) as error:
            self._close()
            return Inventory(problem=_words(error))

    def sample(self) -> list[wire.GpuUsage]:
        """What each GPU of the last inventory does now; one that does not answer is left out."""
        usages = []
        for uuid, handle in self._handles.items():
            try:
                usages.append(_sample(uuid, handle))
            except nvml.NVMLError:
                continue
        return usages

    def processes(self) -> list[Listed]:
        """Who computes on each GPU of the last inventory now; a GPU that does not answer is left out."""
        found: list[Listed] = []
        for uuid, handle in self._handles.items():
            running = optional(nvml.nvmlDeviceGetComputeRunningProcesses, handle) or ()
            found += [Listed(uuid, int(one.pid), one.usedGpuMemory) for one in running]
        return found

    def drawing(self) -> set[int]:
        """Pids of who draws on the GPUs: display servers, and programs that both draw and compute."""
        lists = (optional(nvml.nvmlDeviceGetGraphicsRunningProcesses, handle) for handle in self._handles.values())
        return {int(one.pid) for running in lists for one in running or ()}

    def listed(self) -> tuple[list[Listed], set[int], dict[str, dict[int, float]]]:
        """Who computes, who draws, and at every second look how much of its GPU each used."""
        running = self.processes()
        self._looks += 1
        return running, self.drawing(), self.shares() if running and self._looks % 2 else {}

    def shares(self) -> dict[str, dict[int, float]]:
        """Percent of its GPU that each process used lately, by uuid and pid; GPUs without a new sample are left out.

        Who used nothing is left out of its GPU's.
        """
        found: dict[str, dict[int, float]] = {}
        for uuid, handle in self._handles.items():
            samples = optional(nvml.nvmlDeviceGetProcessUtilization, handle, self._shared_at.get(uuid, 0))
            if samples:
                self._shared_at[uuid] = max(int(one.timeStamp) for one in samples)
                found[uuid] = {int(one.pid): float(one.smUtil) for one in samples}
        return found

    def _ensure_open(self) -> None:
        if self._open:
            return
        if self._library is not None:
            # Loaded by path once, the library also answers to its name, which is how pynvml asks.
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
        """Each GPU that answers, by uuid, and the indexes of the others: one sick GPU is not the others' loss.

        Where none answers and none did before, the first one's error is raised: it says more than an empty list.
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
        )


def read_memory(handle: Any) -> Memory:
    """Read a GPU's memory. Raises NVMLError.

    NVML's total counts what the card keeps for itself: on an H200 615 of 143,771 MiB (driver 580), which no program can
    have; the rest is what CUDA calls the total. Where the call has no second version (before driver 510), NVML does not
    tell the two apart.
    """
    try:
        memory = nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
        usable = int(memory.total) - int(memory.reserved)
        # Not its `used`: NVIDIA's reference counts what is reserved in it, driver 580 does not.
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
    """The nearest common ancestor of two GPUs, or "nvlink"; None where the driver cannot tell."""
    if optional(nvml.nvmlDeviceGetP2PStatus, handle, peer, nvml.NVML_P2P_CAPS_INDEX_NVLINK) == nvml.NVML_P2P_STATUS_OK:
        return "nvlink"
    level = optional(nvml.nvmlDeviceGetTopologyCommonAncestor, handle, peer)
    if level is None:
        return None
    if level <= nvml.NVML_TOPOLOGY_HOSTBRIDGE:
        return "pcie"
    return "numa" if level <= nvml.NVML_TOPOLOGY_NODE else "system"


def optional(ask: Any, *arguments: Any) -> Any:
    """The answer, or None where this device or driver has none (a simulated one may lack the symbol)."""
    try:
        return ask(*arguments)
    except (nvml.NVMLError, AttributeError):
        return None


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _words(error: Exception) -> str:
    if isinstance(error, nvml.NVMLError_LibraryNotFound):
        return "NVML (libnvidia-ml.so.1) is not on this machine: no NVIDIA driver is installed"
    return f"NVML does not answer: {error}"
