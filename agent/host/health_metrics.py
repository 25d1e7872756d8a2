"""What NVML tells of each GPU's health: XID errors, ECC, remapped rows, slowdowns, and whether it is there at all.

Like all of NVML, blocking: from the NVML thread only. What a device or driver does not know is taken to be well.
"""

import ctypes
from typing import Any, NamedTuple

import pynvml as nvml

from agent.host.gpus import Nvml, optional

# What one look takes at most from the driver's queue of errors; the rest waits for the next.
MOST_XIDS = 64
# Memory's health is read at every fifth look.
SLOW_LOOKS = 5


class Vitals(NamedTuple):
    """One GPU at one look."""

    gpu_uuid: str
    # NVML no longer reaches it.
    lost: bool = False
    # Errors since the last look.
    xids: tuple[int, ...] = ()
    # Memory errors that ECC could not correct, since the driver was loaded.
    ecc_errors: int = 0
    # Bad memory is replaced at the next reset; or could not be replaced.
    repair_pending: bool = False
    repair_failed: bool = False
    # Why the clocks are as they are: NVML's bits.
    clocks: int = 0


class VitalSigns:
    """Looks at the GPUs of `nvml`'s inventory."""

    def __init__(self, nvml_: Nvml) -> None:
        self._nvml = nvml_
        self._events: Any = None
        self._watched: dict[str, Any] = {}
        self._slow: dict[str, Vitals] = {}
        self._looks = -1

    def look(self) -> list[Vitals]:
        """Every GPU that there is, or was when this began."""
        self._looks += 1
        handles = self._nvml.handles
        xids = self._take_xids(handles)
        found = [self._read(uuid, handle, tuple(xids.get(uuid, ()))) for uuid, handle in handles.items()]
        return found + [Vitals(uuid, lost=True) for uuid in self._nvml.lost]

    def driver(self) -> str | None:
        """The driver's version now; None where NVML does not say."""
        version = optional(nvml.nvmlSystemGetDriverVersion) if self._nvml.handles else None
        return version.decode() if isinstance(version, bytes) else version

    def _read(self, uuid: str, handle: Any, xids: tuple[int, ...]) -> Vitals:
        try:
            nvml.nvmlDeviceGetMemoryInfo(handle)
        except nvml.NVMLError_GpuIsLost:
            return Vitals(uuid, lost=True, xids=xids)
        except nvml.NVMLError:
            # Another trouble than this one; the sample is left out too.
            pass
        clocks = optional(nvml.nvmlDeviceGetCurrentClocksEventReasons, handle)
        if clocks is None:
            # Its name before driver 535.
            clocks = optional(nvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle)
        return self._memory(uuid, handle)._replace(xids=xids, clocks=clocks or 0)

    def _memory(self, uuid: str, handle: Any) -> Vitals:
        """What changes seldom and is dear to read: some of it goes to the GPU's own processor and back."""
        known = self._slow.get(uuid)
        if known is not None and self._looks % SLOW_LOOKS:
            return known
        uncorrected, volatile = nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
        _, _, pending, failed = optional(nvml.nvmlDeviceGetRemappedRows, handle) or (0, 0, 0, 0)
        # Before Ampere, pages were retired instead of rows remapped.
        pages = optional(nvml.nvmlDeviceGetRetiredPagesPendingStatus, handle)
        self._slow[uuid] = Vitals(
            uuid,
            ecc_errors=optional(nvml.nvmlDeviceGetTotalEccErrors, handle, uncorrected, volatile) or 0,
            repair_pending=bool(pending or pages),
            repair_failed=bool(failed),
        )
        return self._slow[uuid]

    def _take_xids(self, handles: dict[str, Any]) -> dict[str, list[int]]:
        """Errors since the last look, by GPU. Those of before NVML was first asked are not to be had."""
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
            # One that has no events (a MIG device) is watched by the rest of what is read of it.
            optional(nvml.nvmlDeviceRegisterEvents, handle, nvml.nvmlEventTypeXidCriticalError, self._events)


def _address(handle: Any) -> int | None:
    return ctypes.cast(handle, ctypes.c_void_p).value
