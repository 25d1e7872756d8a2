"""Readings of each GPU's health by NVML: temperature, ECC errors, and its performance counters (GPM).

A reading that a card or driver does not have is None, never 0: GPM needs Hopper or newer, ECC can be switched off. Like
all of NVML, blocking: from the NVML thread only.
"""

import math
from typing import Any

import pynvml as nvml

from agent import wire
from agent.host.gpus import Nvml, optional

# The fields of wire.GpuHealth that GPM measures; NVML's names are SM_UTIL, ANY_TENSOR_UTIL and DRAM_BW_UTIL.
GPM_METRICS = {
    "sm_active_percent": nvml.NVML_GPM_METRIC_SM_UTIL,
    "tensor_active_percent": nvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL,
    "dram_active_percent": nvml.NVML_GPM_METRIC_DRAM_BW_UTIL,
}
# The highest count of the wire format; NVML counts in 64 bits.
MOST_ERRORS = 2**31 - 1


class GpuReader:
    """The reader for the GPUs of `nvml_`'s inventory. GPM's figures are of the time since its previous reading."""

    def __init__(self, nvml_: Nvml) -> None:
        self._nvml = nvml_
        # GPM's last sample of each GPU; None: it has no GPM.
        self._samples: dict[str, Any] = {}

    def read(self) -> list[wire.GpuHealth]:
        """Read every GPU of the last inventory; of one that does not answer, all readings are None."""
        handles = self._nvml.handles
        for uuid in self._samples.keys() - handles.keys():
            _free(self._samples.pop(uuid))
        return [self._read(uuid, handle) for uuid, handle in handles.items()]

    def _read(self, uuid: str, handle: Any) -> wire.GpuHealth:
        celsius = optional(nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU)
        return wire.GpuHealth(
            uuid=uuid,
            temperature_celsius=float(celsius) if celsius is not None else None,
            ecc_corrected=_ecc(handle, nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED),
            ecc_uncorrected=_ecc(handle, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED),
            **self._measure(uuid, handle),
        )

    def _measure(self, uuid: str, handle: Any) -> dict[str, Any]:
        """Return GPM's figures since the previous sample; those that it does not give are left out."""
        if uuid not in self._samples:
            self._samples[uuid] = _sample(handle) if _has_gpm(handle) else None
            return {}
        before = self._samples[uuid]
        if before is None:
            return {}
        now = _sample(handle)
        if now is None:
            # Lost or busy: the next sample covers this time too.
            return {}
        self._samples[uuid] = now
        figures = _compare(before, now)
        _free(before)
        return figures


def _ecc(handle: Any, kind: int) -> int | None:
    """Return the errors since the driver was loaded; None if ECC is off or the card has none."""
    count = optional(nvml.nvmlDeviceGetTotalEccErrors, handle, kind, nvml.NVML_VOLATILE_ECC)
    return None if count is None else min(int(count), MOST_ERRORS)


def _has_gpm(handle: Any) -> bool:
    support = optional(nvml.nvmlGpmQueryDeviceSupport, handle)
    return support is not None and bool(support.isSupportedDevice)


def _sample(handle: Any) -> Any:
    sample = optional(nvml.nvmlGpmSampleAlloc)
    if sample is None or optional(nvml.nvmlGpmSampleGet, handle, sample) is not None:
        return sample
    _free(sample)
    return None


def _free(sample: Any) -> None:
    if sample is not None:
        optional(nvml.nvmlGpmSampleFree, sample)


def _compare(before: Any, now: Any) -> dict[str, float]:
    wanted = nvml.c_nvmlGpmMetricsGet_t()
    wanted.version = nvml.NVML_GPM_METRICS_GET_VERSION
    wanted.numMetrics = len(GPM_METRICS)
    wanted.sample1, wanted.sample2 = before, now
    for place, metric in enumerate(GPM_METRICS.values()):
        wanted.metrics[place].metricId = metric
    if optional(nvml.nvmlGpmMetricsGet, wanted) is None:
        return {}
    answers = zip(GPM_METRICS, wanted.metrics, strict=False)
    return {
        name: min(max(float(one.value), 0.0), 100.0)
        for name, one in answers
        if one.nvmlReturn == nvml.NVML_SUCCESS and math.isfinite(one.value)
    }
