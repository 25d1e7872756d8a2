"""Power by nameplate: the watts that a request adds to a node.

The model of Lettich et al. (PWR, CCGrid 2025, arXiv 2412.17484): a GPU of which any part is allocated draws its full
power, another one its idle power; a CPU package likewise, by the CPUs that are allocated. So what matters to placement
is which GPUs and packages it would wake.
"""

from functools import lru_cache
from typing import Final

# Parts of models' names, and their (idle, full) watts; the first found counts. Full power is the vendor's limit.
# Idle power is the paper's; of H100, H200 and the Ls it is a guess from what such GPUs show at rest.
GPUS: Final[tuple[tuple[str, int, int], ...]] = (
    ("H200", 75, 700), ("H100", 70, 700), ("A100", 50, 400), ("V100", 30, 300), ("P100", 25, 250), ("L40", 35, 300),
    ("A10", 30, 150), ("T4", 10, 70), ("L4", 15, 72), ("G2", 30, 150), ("G3", 50, 400),
)  # fmt: skip
OTHER_GPU: Final = 270
# A CPU package of 16 cores with two threads each, and what it draws more once it is in use (Xeon E5-2682 v4).
PACKAGE_MILLI, PACKAGE_WATTS = 32_000, 105


@lru_cache(maxsize=1024)
def gpu_rise(model: str) -> int:
    """Return the watts that a GPU of this model draws more once a part of it is allocated."""
    return next((full - idle for part, idle, full in GPUS if part in model), OTHER_GPU)


def cpu_rise(free: int | None, everything: int | None, asked: int) -> int:
    """Return the watts that the packages draw more with so many CPUs allocated, all in thousandths of a CPU.

    Zero where the node's CPUs are not known.
    """
    if free is None or everything is None:
        return 0
    return PACKAGE_WATTS * (_packages(everything - free + asked) - _packages(everything - free))


def _packages(milli: int) -> int:
    return -(-max(milli, 0) // PACKAGE_MILLI)
