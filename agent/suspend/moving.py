"""The move of suspended programs to other GPUs of the machine: where each is, the driver's map, and what rules one out.

The map of a restore names each GPU once that the program's driver saw when it began, by the one that it is now on, and
each once as a target. CUDA_VISIBLE_DEVICES does not hide a GPU from the driver; a missing device file does. A wrong map
is refused and can be put right; without room on the target the process is lost (driver 580, H100).
"""

import os
import stat
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from agent import wire
from agent.host.gpus import Inventory
from agent.host.processes import Process

# Of CUDA, as the driver numbers it: a restore takes a map since 13.0 (driver 580).
LEAST_CUDA = 13000
# Of /dev/nvidia<number>.
NVIDIA_MAJOR = 195

# The GPU of each assignment, by NVML's name.
Places = Mapping[str, str]
Pairs = list[tuple[str, str]]


class Machine(NamedTuple):
    """The GPUs of the machine, and the CUDA version of its driver (0: it cannot suspend)."""

    inventory: Inventory
    cuda: int

    def gpu(self, uuid: str) -> wire.Gpu | None:
        """Return the GPU of this name; None if the machine has none."""
        return next((gpu for gpu in self.inventory.gpus if gpu.uuid == uuid), None)


def find_hindrance(machine: Machine) -> str | None:
    """Return why no program can be moved between GPUs of this machine; None if the driver can do it."""
    if machine.cuda < LEAST_CUDA:
        return "Programs stay on their GPUs: to move them the driver must be 580 (CUDA 13.0) or newer."
    if machine.inventory.divided or any(gpu.uuid.startswith("MIG-") for gpu in machine.inventory.gpus):
        return "Programs stay on their GPUs: this driver moves whole GPUs, not MIG devices."
    models = [gpu.model for gpu in machine.inventory.gpus]
    if not any(models.count(model) > 1 for model in models):
        return "Programs stay on their GPUs: this machine has no two of one model."
    return None


def refuse_places(machine: Machine, homes: Iterable[Places], targets: Places) -> str | None:
    """Return why the machine's GPUs rule the move out; None if they do not."""
    if (words := find_hindrance(machine)) is not None:
        return words
    for home in homes:
        for uid, source in home.items():
            target = targets.get(uid, source)
            here, there = machine.gpu(source), machine.gpu(target)
            if there is None:
                return f"{target} is not on this node."
            if here is not None and here.model != there.model:
                return f"The programs ran on a {here.model}, and {target} is a {there.model}: choose one of that model."
    return None


def seen_gpus(process: Process, inventory: Inventory) -> list[str]:
    """Return the GPUs whose device files the process has; GPUs without a number count as if it had."""
    return [
        gpu.uuid
        for gpu in inventory.gpus
        if (minor := inventory.minors.get(gpu.uuid)) is None or _has_device(process, minor)
    ]


def _has_device(process: Process, minor: int) -> bool:
    try:
        seen = Path(f"/proc/{process.pid}/root/dev/nvidia{minor}").stat()
    except FileNotFoundError:
        return False
    except OSError:
        # It cannot be told; the driver will.
        return True
    return stat.S_ISCHR(seen.st_mode) and seen.st_rdev == os.makedev(NVIDIA_MAJOR, minor)


def complete_map(moves: Mapping[str, str], seen: Collection[str]) -> Pairs:
    """Return the whole map, by source and target: `moves` and the other seen GPUs, each of which must go somewhere."""
    sources = [gpu for gpu in seen if gpu not in moves]
    free = [gpu for gpu in seen if gpu not in moves.values()]
    stay = [gpu for gpu in sources if gpu in free]
    rest = zip((gpu for gpu in sources if gpu not in stay), (gpu for gpu in free if gpu not in stay), strict=True)
    return sorted([*moves.items(), *((gpu, gpu) for gpu in stay), *rest])


def find_maps(
    homes: Mapping[Process, Places], targets: Places, inventory: Inventory
) -> tuple[dict[int, Pairs], str | None]:
    """Return the driver's map for each process that is not where it is wanted, or why one cannot be moved."""
    maps = {}
    for process, home in homes.items():
        moves = {source: targets.get(uid, source) for uid, source in home.items()}
        if all(source == target for source, target in moves.items()):
            continue
        seen = seen_gpus(process, inventory)
        missing = sorted({*moves, *moves.values()} - set(seen))
        if missing:
            return {}, (
                f"Process {process.pid} has no device file of {', '.join(missing)}, as in a container that was given "
                "its own GPUs only: it can only stay there. Programs started by `gpucloud run` can be moved."
            )
        maps[process.pid] = complete_map(moves, seen)
    return maps, None
