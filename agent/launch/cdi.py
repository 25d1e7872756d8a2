"""The CDI spec of a claim: what a container runtime adds to its containers (container-device-interface, SPEC.md).

A path means the same inside and outside: libvcuda's pages, the library, and the variables that name them need no
translation, and the agent identifies a container's programs in the same way as any others.

Written for version 0.5.0, the first in which a device's name may begin with a digit; runtimes since 2022 read it.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agent import wire
from agent.local_wire import Environment
from agent.settings import Library

VERSION = "0.5.0"
# "vendor-class_name", as the specification asks of files for one container's devices.
FILE_PREFIX = "gpucloud.io-vgpu_"
# Every process of the container preloads the library named in this file, also one whose environment was cleared.
# LD_PRELOAD would take the place of the image's own.
PRELOAD_FILE = "ld.so.preload"
# A process that lost GPUCLOUD_CLAIM_DIR gets no GPU, instead of one without limits.
REQUIRE_FILE = "require-limits"
CONTAINER_FILES = {PRELOAD_FILE: "/etc/ld.so.preload", REQUIRE_FILE: "/etc/gpucloud/require-limits"}
# The last of `ro` and `rw` counts for every runtime. `docker run --read-only` appends `ro` to mounts that do not name
# it already; a usage page that cannot be written means no GPU.
READ_ONLY = ("bind", "nosuid", "nodev", "ro")
WRITABLE = (*READ_ONLY, "rw")
# Where the driver says which device node gives access to each part of a GPU in MIG mode.
CAPABILITIES = Path("/proc/driver/nvidia/capabilities")
CAPABILITY_DEVICES = "/dev/nvidia-caps/nvidia-cap"
CONTROL_DEVICES = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools")


def file_name(claim_uid: str) -> str:
    """Return the file name of the claim's spec; unlike a temporary file's, it ends as runtimes expect."""
    return f"{FILE_PREFIX}{claim_uid}.json"


def device_nodes(minors: Sequence[int]) -> list[str]:
    """Return the driver's devices that a program on these GPUs opens, as far as this machine has them."""
    if not minors:
        return []
    paths = [f"/dev/nvidia{minor}" for minor in sorted(minors)]
    return [path for path in (*paths, *CONTROL_DEVICES) if Path(path).is_char_device()]


def capability_nodes(
    minor: int, gpu_instance: int, compute_instance: int, *, capabilities: Path = CAPABILITIES
) -> list[str]:
    """Return the device nodes that give access to one MIG device, as NVIDIA's own specification of it has them.

    They are those of its GPU instance and of its compute instance; a driver without such files needs none.
    """
    instance = capabilities / f"gpu{minor}" / "mig" / f"gi{gpu_instance}"
    found = []
    for access in (instance / "access", instance / f"ci{compute_instance}" / "access"):
        try:
            lines = dict(line.split(": ", 1) for line in access.read_text().splitlines() if ": " in line)
        except OSError:
            continue
        if (number := lines.get("DeviceFileMinor", "").strip()).isdecimal():
            found.append(f"{CAPABILITY_DEVICES}{number}")
    return found


def spec(
    environment: Environment,
    *,
    directory: Path,
    files: Path,
    library: Library,
    devices: Sequence[str],
    names: Sequence[str] = (),
) -> dict[str, Any]:
    """Return the claim's device, under its uid and these names: pages, library, variables, device nodes."""
    variables = environment.set | environment.prepend
    edits: dict[str, Any] = {
        "env": [f"{name}={value}" for name, value in variables.items()],
        "mounts": [
            # The directory, not its files: `turns` is made only when the arbiter has read the claim.
            _mount(directory),
            _mount(directory / "usage", writable=True),
            _mount(library.path),
            *(_mount(files / name, inside) for name, inside in CONTAINER_FILES.items()),
        ],
    }
    if library.simulated_driver is not None and library.simulated_node is not None:
        edits["mounts"] += [_mount(library.simulated_driver), _mount(library.simulated_node, writable=True)]
    if pipe := environment.set.get("CUDA_MPS_PIPE_DIRECTORY"):
        # A socket can be connected to on a read-only mount, and nobody can remove it there.
        edits["mounts"].append(_mount(Path(pipe)))
    if devices:
        edits["deviceNodes"] = [{"path": path, "permissions": "rw"} for path in devices]
    made = [{"name": name, "containerEdits": edits} for name in (environment.claim, *names)]
    return {"cdiVersion": VERSION, "kind": wire.CDI_KIND, "devices": made}


def mounted_claim(spec: object, claims: Path) -> str | None:
    """Return the claim of this agent that the spec mounts; None if it is another's or no spec of ours."""
    try:
        mounts = spec["devices"][0]["containerEdits"]["mounts"]  # type: ignore[index]
        path = Path(mounts[0]["hostPath"])
    except (TypeError, KeyError, IndexError):
        return None
    return path.name if path.parent == claims else None


def _mount(path: Path, inside: str | None = None, *, writable: bool = False) -> dict[str, Any]:
    return {
        "hostPath": str(path),
        "containerPath": inside or str(path),
        "options": list(WRITABLE if writable else READ_ONLY),
    }
