"""Health metrics of each GPU by NVML: XID errors, ECC, remapped rows, slowdowns, and whether it is reachable at all.

Like all of NVML, blocking: from the NVML thread only. A metric that a device or driver does not know counts as well.
"""

import ctypes
from typing import Any, NamedTuple

import pynvml as nvml

from agent.host.gpus import Nvml, optional

# The most events that one reading takes from the driver's queue; the rest waits for the next.
MOST_XIDS = 64
# The memory's health is read at every fifth reading.
SLOW_LOOKS = 5


class HealthMetrics(NamedTuple):
    """The health metrics of one GPU at one reading."""

    gpu_uuid: str
    # NVML no longer reaches it.
    lost: bool = False
    # Errors since the last reading.
    xids: tuple[int, ...] = ()
    # Memory errors that ECC could not correct, since the driver was loaded.
    ecc_errors: int = 0
    # Bad memory is replaced at the next reset; or could not be replaced.
    repair_pending: bool = False
    repair_failed: bool = False
    # The reasons of the present clocks: NVML's bits.
    clocks: int = 0


class HealthReader:
    """The reader of health metrics for the GPUs of `nvml`'s inventory."""

    def __init__(self, nvml_: Nvml) -> None:
        self._nvml = nvml_
        self._events: Any = None
        self._watched: dict[str, Any] = {}
        self._slow: dict[str, HealthMetrics] = {}
        self._looks = -1

    def read(self) -> list[HealthMetrics]:
        """Read the health metrics of every GPU that there is, or was when this began."""
        self._looks += 1
        handles = self._nvml.handles
        xids = self._take_xids(handles)
        found = [self._read(uuid, handle, tuple(xids.get(uuid, ()))) for uuid, handle in handles.items()]
        return found + [HealthMetrics(uuid, lost=True) for uuid in self._nvml.lost]

    def driver(self) -> str | None:
        """Return the driver's version now; None if NVML does not say."""
        version = optional(nvml.nvmlSystemGetDriverVersion) if self._nvml.handles else None
        return version.decode() if isinstance(version, bytes) else version

    def _read(self, uuid: str, handle: Any, xids: tuple[int, ...]) -> HealthMetrics:
        try:
            nvml.nvmlDeviceGetMemoryInfo(handle)
        except nvml.NVMLError_GpuIsLost:
            return HealthMetrics(uuid, lost=True, xids=xids)
        except nvml.NVMLError:
            # Another failure than this one; the sample is left out too.
            pass
        clocks = optional(nvml.nvmlDeviceGetCurrentClocksEventReasons, handle)
        if clocks is None:
            # The call's name before driver 535.
            clocks = optional(nvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle)
        return self._memory(uuid, handle)._replace(xids=xids, clocks=clocks or 0)

    def _memory(self, uuid: str, handle: Any) -> HealthMetrics:
        """Return the metrics that change seldom and are slow to read: some go to the GPU's own processor and back."""
        known = self._slow.get(uuid)
        if known is not None and self._looks % SLOW_LOOKS:
            return known
        uncorrected, volatile = nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
        _, _, pending, failed = optional(nvml.nvmlDeviceGetRemappedRows, handle) or (0, 0, 0, 0)
        # Before Ampere, pages were retired instead of rows remapped.
        pages = optional(nvml.nvmlDeviceGetRetiredPagesPendingStatus, handle)
        self._slow[uuid] = HealthMetrics(
            uuid,
            ecc_errors=optional(nvml.nvmlDeviceGetTotalEccErrors, handle, uncorrected, volatile) or 0,
            repair_pending=bool(pending or pages),
            repair_failed=bool(failed),
        )
        return self._slow[uuid]

    def _take_xids(self, handles: dict[str, Any]) -> dict[str, list[int]]:
        """Return the errors since the last reading, by GPU. Errors before the first reading are not available."""
        if handles.keys() != self._watched.keys():
            self._watch(handles)
        found: dict[str, list[int]] = {}
        if self._events is None:
            return found
        by_address = {_address(handle): uuid for uuid, handle in self._watched.items()}
        for _ in range(MOST_XIDS):
            # With no time to wait it answers at once: an event, or that there is none.
            event = optional(nvml.nvmlEventSetWait_v2, self._events, 0)
            if event is None:
                break
            uuid = by_address.get(_address(event.device))
            if uuid is not None:
                found.setdefault(uuid, []).append(int(event.eventData))
        return found

    def _watch(self, handles: dict[str, Any]) -> None:
        if self._events is not None:
            optional(nvml.nvmlEventSetFree, self._events)
        self._watched = dict(handles)
        self._events = optional(nvml.nvmlEventSetCreate)
        for handle in handles.values():
            # A device without events (a MIG device) is watched by its other metrics.
            optional(nvml.nvmlDeviceRegisterEvents, handle, nvml.nvmlEventTypeXidCriticalError, self._events)


def _address(handle: Any) -> int | None:
    return ctypes.cast(handle, ctypes.c_void_p).value
