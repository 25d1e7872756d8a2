"""Checks of the driver, its device files, and other software that shares the GPUs."""

import os
import re
from collections.abc import Collection, Iterable
from pathlib import Path

from agent.check.finding import failed, ok, warning
from agent.host.gpus import Inventory
from agent.wire import Check

# The first driver of CUDA 12; the entry points of older ones are not audited.
OLDEST_DRIVER = 525
DEVICES = re.compile(r"nvidia(ctl|-uvm|[0-9]+)")
# Files that other GPU-sharing software leaves on a machine. Two such libraries in one process count each other's calls.
FILES = {
    "/usr/local/vgpu": "HAMi",
    "/etc/vgpu-manager": "vgpu-manager",
    "/etc/gpu-manager": "gpu-manager",
    "/var/run/nvshare": "nvshare",
    "/kubeshare": "KubeShare",
}
# /proc shows the first 15 bytes of a program's name.
PROGRAMS = {
    "nvidia-cuda-mps": "NVIDIA MPS",
    "nvshare-schedul": "nvshare",
    "gem-schd": "Gemini",
    "gpu-manager": "gpu-manager",
}
PRELOADED = re.compile(r"libvgpu|libcuda-control|libnvshare|libgemhook|libvgpu-control")


def driver(inventory: Inventory) -> Check:
    """Check that NVML answers, and its driver's version."""
    if inventory.problem is not None:
        return failed("driver", inventory.problem, "Install NVIDIA's driver; `nvidia-smi` must list the GPUs.")
    count = len(inventory.gpus)
    words = f"{inventory.driver_version}, {count} GPU{'' if count == 1 else 's'}"
    if not count:
        return failed("driver", words, "NVML finds no GPU: `nvidia-smi` and the kernel's log say why.")
    major = inventory.driver_version.partition(".")[0]
    if major.isdigit() and int(major) < OLDEST_DRIVER:
        return warning(
            "driver", f"{words}: older than CUDA 12", f"Limits are tried on drivers from {OLDEST_DRIVER} on: update it."
        )
    return ok("driver", words)


def files(directory: Path = Path("/dev")) -> Check:
    """Check that the driver's device files exist and are open to this user."""
    found = sorted(path for path in directory.glob("nvidia*") if DEVICES.fullmatch(path.name))
    missing = [name for name in ("nvidiactl", "nvidia-uvm", "nvidia0") if directory / name not in found]
    if missing:
        return failed(
            "devices",
            f"{', '.join(f'{directory}/{name}' for name in missing)} not there",
            "`nvidia-modprobe -c 0 -u` makes them; in a container, start it with --gpus all.",
        )
    closed = [str(path) for path in found if not os.access(path, os.R_OK | os.W_OK)]
    if closed:
        return failed(
            "devices",
            f"uid {os.getuid()} may not read and write {', '.join(closed)}",
            "Run the agent as root, or give this user the devices (usually the group `video`).",
        )
    return ok("devices", f"{len(found)} device files, readable and writable")


def others(root: Path = Path("/"), *, own: Collection[int] = ()) -> Check:
    """Check for other software on the machine that shares its GPUs. `own`: the pids of this agent's MPS daemons."""
    found = {name for path, name in FILES.items() if (root / path.lstrip("/")).exists()}
    found |= {PROGRAMS[program] for program in _programs(root / "proc", own) if program in PROGRAMS}
    preload = root / "etc/ld.so.preload"
    text = preload.read_text(errors="replace") if preload.is_file() else ""
    found |= {f"{match.group()} in {preload}" for match in PRELOADED.finditer(text)}
    if not found:
        return ok("other-sharing", "no other software shares the GPUs")
    return warning(
        "other-sharing",
        f"found {', '.join(sorted(found))}",
        "Two systems that share one GPU do not coordinate: keep only one of them on this machine.",
    )


def _programs(proc: Path, own: Collection[int]) -> Iterable[str]:
    for path in proc.glob("[0-9]*/comm"):
        if int(path.parent.name) in own:
            continue
        try:
            yield path.read_text(errors="replace").strip()
        except OSError:
            # The process has ended meanwhile.
            continue
