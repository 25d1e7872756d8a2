"""The memory node (NUMA) that a GPU is attached to, as the kernel tells by its PCI address."""

from pathlib import Path
from typing import Any

import pynvml as nvml

DEVICES = Path("/sys/bus/pci/devices")


def read_node(handle: Any, devices: Path = DEVICES) -> int | None:
    """Return the GPU's memory node; None if the machine has one only, or does not say. Raises NVMLError."""
    address = nvml.nvmlDeviceGetPciInfo(handle)
    # A GPU is the first function of its device.
    path = devices / f"{address.domain:04x}:{address.bus:02x}:{address.device:02x}.0" / "numa_node"
    try:
        node = int(path.read_text())
    except (OSError, ValueError):
        return None
    # The kernel's word for none.
    return node if node >= 0 else None
