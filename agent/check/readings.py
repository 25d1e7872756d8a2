"""The readings of this machine's GPUs as `agent gpus` prints them, without a server or a running agent."""

import os
import time
from pathlib import Path
from typing import Any

import pynvml as nvml

from agent import wire
from agent.claims.gpu_processes import GpuProcesses
from agent.host.gpus import Inventory, Nvml
from agent.host.readings import GpuReader

ROW = "{:<4} {:<14} {:<34} {}"
NONE = "not available"


class NoGpus(Exception):
    """NVML does not answer; the message says why."""


def describe(nvml_library: Path | None, *, seconds: float) -> str:
    """Return a table of all GPUs; GPM's figures are means over these seconds. Raises NoGpus."""
    driver = Nvml(nvml_library)
    inventory = driver.inventory()
    if inventory.problem is not None:
        raise NoGpus(inventory.problem)
    reader = GpuReader(driver)
    reader.read()
    time.sleep(seconds)
    readings = {one.uuid: one for one in reader.read()}
    listed = GpuProcesses(pids_are_ours=True).describe(driver.processes(), {})
    return "\n".join(_lines(inventory, driver, readings, [one for one in listed if one.pid != os.getpid()]))


def _lines(
    inventory: Inventory, driver: Nvml, readings: dict[str, wire.GpuHealth], listed: list[wire.GpuProcess]
) -> list[str]:
    lines = [ROW.format("GPU", "TEMP", "ECC", "ACTIVE (GPM)")]
    for gpu in inventory.gpus:
        one = readings.get(gpu.uuid, wire.GpuHealth(uuid=gpu.uuid))
        celsius = NONE if one.temperature_celsius is None else f"{one.temperature_celsius:.0f} °C"
        lines.append(ROW.format(gpu.index, celsius, _ecc(one), _activity(one, driver.handles.get(gpu.uuid))))
        lines += [
            f"     process {row.pid} {row.command}: {'?' if row.memory_bytes is None else row.memory_bytes >> 20} MiB"
            for row in listed
            if row.gpu_uuid == gpu.uuid
        ]
    return lines


def _ecc(one: wire.GpuHealth) -> str:
    if one.ecc_corrected is None and one.ecc_uncorrected is None:
        return NONE
    return f"{_or_none(one.ecc_corrected)} corrected, {_or_none(one.ecc_uncorrected)} uncorrected"


def _activity(one: wire.GpuHealth, handle: Any) -> str:
    figures = {"SM": one.sm_active_percent, "tensor": one.tensor_active_percent, "DRAM": one.dram_active_percent}
    if all(value is None for value in figures.values()):
        return f"{NONE} ({_why_without_gpm(handle)})"
    return ", ".join(f"{name} {NONE if value is None else f'{value:.0f} %'}" for name, value in figures.items())


def _why_without_gpm(handle: Any) -> str:
    """Return NVML's own error, or the card's answer."""
    try:
        if not nvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice:
            return "the card has no GPM: Hopper or newer has"
        sample = nvml.nvmlGpmSampleAlloc()
        try:
            nvml.nvmlGpmSampleGet(handle, sample)
        finally:
            nvml.nvmlGpmSampleFree(sample)
    except nvml.NVMLError as error:
        return str(error)
    return "NVML gave no figures"


def _or_none(value: int | None) -> str:
    return NONE if value is None else str(value)
