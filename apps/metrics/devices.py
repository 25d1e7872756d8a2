"""Metrics of GPUs, under the names and labels of NVIDIA's dcgm-exporter, as far as the agents measure them.

A field without a recent sample or report is left out, as dcgm-exporter leaves out what a device does not have.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from django.db.models import Func, IntegerField
from django.utils import timezone
from prometheus_client.core import GaugeMetricFamily

from apps.nodes.models import Gpu, GpuHealth, Sample
from apps.nodes.models.health import STALE

MIB = 1 << 20
LABELS = ("gpu", "UUID", "device", "modelName", "Hostname")
FIELDS = {
    "DCGM_FI_DEV_GPU_UTIL": "GPU utilization (in %).",
    "DCGM_FI_DEV_FB_USED": "Framebuffer memory used (in MiB).",
    "DCGM_FI_DEV_FB_FREE": "Framebuffer memory free (in MiB).",
    "DCGM_FI_DEV_GPU_TEMP": "GPU temperature (in C).",
    "DCGM_FI_DEV_POWER_USAGE": "Power draw (in W).",
    "DCGM_FI_DEV_SM_CLOCK": "SM clock frequency (in MHz).",
    "DCGM_FI_DEV_MEM_CLOCK": "Memory clock frequency (in MHz).",
    "DCGM_FI_DEV_XID_ERRORS": "Value of the last XID error encountered.",
    "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL": "Total number of single-bit volatile ECC errors.",
    "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": "Total number of double-bit volatile ECC errors.",
    "DCGM_FI_PROF_SM_ACTIVE": "The ratio of cycles an SM has at least 1 warp assigned.",
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": "Ratio of cycles the tensor (HMMA) pipe is active.",
    "DCGM_FI_PROF_DRAM_ACTIVE": "Ratio of cycles the device memory interface is active sending or receiving data.",
}
PROCESSES = ("gpucloud_gpu_processes", "Processes that use the GPU, of claims and others.")
# The columns of `GpuHealth` behind the last five.
HEALTH = ("ecc_corrected", "ecc_uncorrected", "sm_active_percent", "tensor_active_percent", "dram_active_percent")


# The form of `Gpu.unhealthy`.
XID = re.compile(r"XID (\d+)")


class Device(NamedTuple):
    """One GPU; `labels` are the values of `LABELS`."""

    key: int
    labels: tuple[str, str, str, str, str]
    memory_mib: int
    # The XID error that keeps claims off it; 0: none. Only its agent knows those caused by programs.
    xid: int


def present(most: int) -> list[Device]:
    """Return the GPUs that are present, at most this many; one query."""
    rows = Gpu.objects.filter(present=True).order_by("pk")
    columns = ("pk", "index", "uuid", "model", "node__hostname", "node__name")
    found = rows.values_list(*columns, "memory_mib", "unhealthy")[:most]
    return [
        Device(key, (str(index), uuid, f"nvidia{index}", model, hostname or node), memory, _xid(unhealthy))
        for key, index, uuid, model, hostname, node, memory, unhealthy in found
    ]


def _xid(unhealthy: str) -> int:
    found = XID.search(unhealthy)
    return int(found[1]) if found else 0


def health() -> dict[int, tuple[Any, ...]]:
    """Return `HEALTH` and the number of processes of each GPU with a recent report, by its key; one query."""
    recent = GpuHealth.objects.filter(reported_at__gt=timezone.now() - STALE, gpu__present=True)
    number = Func("processes", function="jsonb_array_length", output_field=IntegerField())
    return {key: readings for key, *readings in recent.values_list("pk", *HEALTH, number)}


def families(
    devices: list[Device], samples: Mapping[int, Sample], reports: Mapping[int, Sequence[Any]]
) -> Iterator[GaugeMetricFamily]:
    """Yield the metrics of each GPU with a recent sample or report, given by its key."""
    named = FIELDS | dict([PROCESSES])
    made = {name: GaugeMetricFamily(name, words, labels=LABELS) for name, words in named.items()}
    for device in devices:
        sample = samples.get(device.key)
        values = _of_report(reports.get(device.key)) | (_values(device, sample) if sample else {})
        for name, value in values.items():
            if value is not None:
                made[name].add_metric(device.labels, value)
    yield from made.values()


def _of_report(readings: Sequence[Any] | None) -> dict[str, float | None]:
    if readings is None:
        return {}
    corrected, uncorrected, *percents, processes = readings
    ratios = [None if percent is None else percent / 100 for percent in percents]
    values = dict(zip(list(FIELDS)[-len(HEALTH) :], [corrected, uncorrected, *ratios], strict=True))
    return values | {PROCESSES[0]: processes}


def _values(device: Device, sample: Sample) -> dict[str, float | None]:
    used = sample.memory_bytes / MIB
    return {
        "DCGM_FI_DEV_GPU_UTIL": sample.core_percent,
        "DCGM_FI_DEV_FB_USED": used,
        "DCGM_FI_DEV_FB_FREE": max(0.0, device.memory_mib - used),
        "DCGM_FI_DEV_GPU_TEMP": sample.temperature_celsius,
        "DCGM_FI_DEV_POWER_USAGE": sample.power_watts,
        "DCGM_FI_DEV_SM_CLOCK": sample.sm_clock_mhz,
        "DCGM_FI_DEV_MEM_CLOCK": sample.memory_clock_mhz,
        "DCGM_FI_DEV_XID_ERRORS": device.xid,
    }
