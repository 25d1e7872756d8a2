"""Limits on a control group's device memory, which NVIDIA's driver enforces itself from r615 on.

NVML sets them by `nvmlDeviceSetMemoryLimits_v1`, of which nvidia-ml-py 13.615.71 has the structures and calls. Their
meaning is after nvml.h (nvidia_nvml_dev 13.5.37) and NVIDIA's description of the feature,
https://docs.nvidia.com/deploy/mps/mpsv3-memory-partitioning.html. With the kernel's dmem controller (6.14 and newer)
the driver keeps limits there, and only a group below ones that enable the controller has one; elsewhere the driver
keeps account by itself. NVML decides which; the files dmem.* are never written here, as NVIDIA asks. None of it has run
on a driver of r615: there was none to try.

Like all of NVML, blocking: from the NVML thread only.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pynvml as nvml

FIRST_DRIVER = 615
# NVML's name for it: NVML_DEVICE_MEMORY_LIMIT_MAX.
NO_LIMIT = 0xFFFFFFFFFFFFFFFF
# Any group of any tree: the call only tests that it exists.
_ANY_GROUP = Path("/sys/fs/cgroup")


class Limit(NamedTuple):
    """A group's limit on one GPU and the use by its processes, in bytes."""

    hard_bytes: int
    used_bytes: int


class LimitError(Exception):
    """Failure of NVML to set or report a limit; the message says why and what to do."""


class NotKnown(LimitError):
    """Driver, or nvidia-ml-py on this machine, older than the calls."""


def is_known(handle: Any) -> bool:
    """Return whether the driver has the calls; not whether this GPU or this group can be limited."""
    try:
        read(handle, _ANY_GROUP)
    except NotKnown:
        return False
    except LimitError:
        return True
    return True


def read(handle: Any, group: Path) -> Limit | None:
    """Read a group's limit, or the nearest one above it; return None if there is none. Raises LimitError."""
    call = _find("nvmlDeviceGetMemoryLimits_v1")
    limits = nvml.c_nvmlGetMemoryLimits_v1_t(nameSpace=bytes(group))
    try:
        call(handle, limits)
    except (nvml.NVMLError_NotFound, nvml.NVMLError_NotSupported):
        # r615 is documented to answer "not supported" without any limit yet, too; setting one tells them apart.
        return None
    except nvml.NVMLError as error:
        raise _translate(error, group) from error
    return Limit(int(limits.hardLimit), int(limits.currentUsed))


def write(handle: Any, group: Path, hard_bytes: int) -> None:
    """Limit a group's use of a GPU; `NO_LIMIT` removes the limit. Raises LimitError.

    The soft limit stays 0. It would be a reservation, which NVML adds to every group above: these are not the agent's,
    and keep it when the group is removed with it set. The scheduler alone decides which memory is kept for whom.
    """
    call = _find("nvmlDeviceSetMemoryLimits_v1")
    limits = nvml.c_nvmlSetMemoryLimits_v1_t(nameSpace=bytes(group), softLimit=0, hardLimit=hard_bytes)
    try:
        call(handle, limits)
    except nvml.NVMLError as error:
        raise _translate(error, group) from error


def _find(name: str) -> Callable[[Any, Any], None]:
    call: Callable[[Any, Any], None] | None = getattr(nvml, name, None)
    if call is None:
        raise NotKnown("nvidia-ml-py is older than 13.615")
    return call


def _translate(error: nvml.NVMLError, group: Path) -> LimitError:
    match error:
        case nvml.NVMLError_FunctionNotFound():
            return NotKnown(f"the driver is older than r{FIRST_DRIVER}")
        case nvml.NVMLError_NotFound():
            return LimitError(
                f"the dmem controller is off for {group}: the groups above it must have dmem in cgroup.subtree_control"
            )
        case nvml.NVMLError_NoPermission():
            return LimitError("only root may set it: run the agent as root")
        case nvml.NVMLError_NotSupported():
            return LimitError("the driver does not limit this GPU's memory")
        case _:
            return LimitError(f"NVML answered: {error}")
