"""The machine's GPUs as NVML shows them, real or simulated: what there is, and what it is doing.

Every call here may block for milliseconds (a driver under load: seconds): call from a thread, one call at a time.
NVML that is missing or broken is a fact to report, never an error that ends the agent.
"""

import contextlib
import ctypes
from pathlib import Path
from typing import Any, NamedTuple

import pynvml as nvml

from agent import wire


class Inventory(NamedTuple):
    """What the machine has."""

    gpus: tuple[wire.Gpu, ...] = ()
    driver_version: str = "none"
    # Why there are no GPUs, in words; None where NVML answered.
    problem: str | None = None
    # The number of /dev/nvidia<number>, by uuid; left out where the driver has none (a simulated one).
    minors: dict[str, int] = {}


class Listed(NamedTuple):
    """A process that NVML shows on a GPU."""

    gpu_uuid: str
    # As the kernel's first pid namespace counts.
    pid: int
    # None where this driver does not say.
    memory_bytes: int | None


class Nvml:
    """NVML, opened when it can be and opened again when it could not.

    `library` names the file to load before pynvml looks for one by name (the simulated driver's); None for the
    system's own.
    """

    def __init__(self, library: Path | None = None) -> None:
        self._library = library
        self._open = False
        self._handles: dict[str, Any] = {}

    def inventory(self) -> Inventory:
        """Every GPU there is now, with its links to the others."""
        try:
            self._ensure_open()
            handles = self._find_handles()
            self._handles = handles
            gpus = tuple(self._describe(index, uuid) for index, uuid in enumerate(handles))
            minors = {uuid: _optional(nvml.nvmlDeviceGetMinorNumber, handle) for uuid, handle in handles.items()}
            known = {uuid: minor for uuid, minor in minors.items() if minor is not None}
            return Inventory(gpus, _text(nvml.nvmlSystemGetDriverVersion()), minors=known)
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
            running = _optional(nvml.nvmlDeviceGetComputeRunningProcesses, handle) or ()
            found += [Listed(uuid, int(one.pid), one.usedGpuMemory) for one in running]
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

    def _find_handles(self) -> dict[str, Any]:
        handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
        return {_text(nvml.nvmlDeviceGetUUID(handle)): handle for handle in handles}

    def _describe(self, index: int, uuid: str) -> wire.Gpu:
        handle = self._handles[uuid]
        return wire.Gpu(
            uuid=uuid,
            index=index,
            model=_text(nvml.nvmlDeviceGetName(handle)),
            memory_bytes=int(nvml.nvmlDeviceGetMemoryInfo(handle).total),
            links={
                other: link
                for other, peer in self._handles.items()
                if other != uuid and (link := _link(handle, peer)) is not None
            },
        )


def _sample(uuid: str, handle: Any) -> wire.GpuUsage:
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    milliwatts = _optional(nvml.nvmlDeviceGetPowerUsage, handle)
    temperature = _optional(nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU)
    utilisation = _optional(nvml.nvmlDeviceGetUtilizationRates, handle)
    sm_clock = _optional(nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_SM)
    memory_clock = _optional(nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_MEM)
    return wire.GpuUsage(
        uuid=uuid,
        core_percent=float(utilisation.gpu) if utilisation is not None else 0.0,
        memory_bytes=int(memory.used),
        power_watts=milliwatts / 1000 if milliwatts is not None else None,
        temperature_celsius=float(temperature) if temperature is not None else None,
        sm_clock_mhz=int(sm_clock) if sm_clock is not None else None,
        memory_clock_mhz=int(memory_clock) if memory_clock is not None else None,
    )


def _link(handle: Any, peer: Any) -> str | None:
    """The nearest common ancestor of two GPUs, or "nvlink"; None where the driver cannot tell."""
    if _optional(nvml.nvmlDeviceGetP2PStatus, handle, peer, nvml.NVML_P2P_CAPS_INDEX_NVLINK) == nvml.NVML_P2P_STATUS_OK:
        return "nvlink"
    level = _optional(nvml.nvmlDeviceGetTopologyCommonAncestor, handle, peer)
    if level is None:
        return None
    if level <= nvml.NVML_TOPOLOGY_HOSTBRIDGE:
        return "pcie"
    return "numa" if level <= nvml.NVML_TOPOLOGY_NODE else "system"


def _optional(ask: Any, *arguments: Any) -> Any:
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
