"""The bounds of a run on the machine's memory, processors and disk.

A claim is a part of a GPU; its programs may take the same part of the machine, unless its operator says how much.
"""

import os
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from agent import wire

# A PyTorch program with a CUDA context takes 1.2 GiB (H100), part of which are files that can be read again.
LEAST_MEMORY_BYTES = 2 << 30
# Weights of control groups go from 1 to 10,000; a service of the machine has 100.
WEIGHT_OF_ALL_GPUS = 1000


class Bounds(NamedTuple):
    """The part of the machine that one run may take."""

    memory_bytes: int
    disk_bytes: int
    # Its part of the processors while others want them, beside other groups' weights.
    cpu_weight: int


def find_bounds(
    assignments: Iterable[wire.Assignment], gpu_bytes: Mapping[str, int], *, memory_mib: int, disk_mib: int
) -> Bounds:
    """Return the bounds of a run under these assignments of its claim.

    `gpu_bytes`: the memory of each GPU of the machine. `memory_mib`: the operator's bound for each run; 0: in
    proportion to the claim's part of all GPUs, by the larger of compute and memory.
    """
    parts = [
        max(one.core_request / 100, one.memory_bytes / (gpu_bytes.get(one.gpu_uuid) or one.memory_bytes or 1))
        for one in assignments
    ]
    part = min(1.0, sum(parts) / max(1, len(gpu_bytes)))
    memory = memory_mib << 20 or max(LEAST_MEMORY_BYTES, int(part * machine_bytes()))
    return Bounds(memory, disk_mib << 20, max(1, round(part * WEIGHT_OF_ALL_GPUS)))


def machine_bytes() -> int:
    """Return the memory of this machine."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
