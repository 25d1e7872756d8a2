"""MIG profiles of GPU models that are not in MIG mode, so that no agent has read them from a driver yet.

Source: NVIDIA's MIG user guide (docs.nvidia.com/datacenter/tesla/mig-user-guide, "Supported MIG Profiles"). Profiles
with media engines are left out, as everywhere. Other models have no table: their instances are not known here.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from apps.scheduling.core.mig import Mig, Profile
from apps.scheduling.core.values import GpuState

_EVERY_SECOND = (0, 2, 4, 6)


def _table(names: str, memory: tuple[int, int, int, int]) -> tuple[Profile, ...]:
    one, two, half, whole = names.split()
    return (
        Profile(f"1g.{one}gb", 1, memory[0], 1, tuple(range(7))),
        Profile(f"1g.{two}gb", 1, memory[1], 2, _EVERY_SECOND),
        Profile(f"2g.{two}gb", 2, memory[1], 2, _EVERY_SECOND[:3]),
        Profile(f"3g.{half}gb", 3, memory[2], 4, (0, 4)),
        Profile(f"4g.{half}gb", 4, memory[2], 4, (0,)),
        Profile(f"7g.{whole}gb", 7, memory[3], 8, (0,)),
    )


# Part of a model's name, the MiB of its 7g profile, and its profiles.
TABLES: Final = (
    ("A100", _table("5 10 20 40", (4864, 9984, 20096, 40448))),
    ("A100", _table("10 20 40 80", (9856, 19968, 40192, 81152))),
    ("H100", _table("10 20 40 80", (9984, 20096, 40448, 81152))),
    ("H200", _table("18 35 71 141", (16384, 33280, 71168, 143360))),
)
# NVML's memory of a GPU and that of its largest profile differ by a few hundred MiB.
NEAR_MIB: Final = 2048


def profiles_of(gpu: GpuState, read: Mapping[str, tuple[Profile, ...]]) -> tuple[Profile, ...]:
    """Return the profiles of the GPU: its own, those that an agent has `read` of the model, or the table's; or none."""
    if gpu.mig is not None:
        return gpu.mig.profiles
    if gpu.model in read:
        return read[gpu.model]
    near = [
        profiles
        for part, profiles in TABLES
        if part in gpu.model and abs(profiles[-1].memory_mib - gpu.memory_mib) <= NEAR_MIB
    ]
    return near[0] if near else ()


def divided(gpus: Iterable[GpuState]) -> list[tuple[GpuState, Mig | None]]:
    """Return the GPUs with the state that each would have in MIG mode, without instances; None: it has no such mode."""
    gpus = list(gpus)
    read = {gpu.model: gpu.mig.profiles for gpu in gpus if gpu.mig is not None}
    return [(gpu, Mig(found) if (found := profiles_of(gpu, read)) else None) for gpu in gpus]
