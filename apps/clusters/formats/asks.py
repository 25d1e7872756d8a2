"""The common representation of all formats.

A container (or a whole pod) *asks*; a running pod *holds* shares of GPUs. Core is percent of one GPU, memory is MiB on
each of its GPUs.
"""

from dataclasses import dataclass
from typing import Any

from gpucloud.errors import Invalid

WHOLE = 100
# A claim has at least one percent, so that a share without a guarantee is still distinct on its GPU.
LEAST_CORE = 1


class Unreadable(Invalid, code="unreadable-pod", title="The pod cannot be read"):
    """The pod violates its format, or contradicts itself."""


@dataclass(frozen=True, slots=True)
class Ask:
    """A request for `gpu_count` GPUs of one node, with this share of each.

    `container` is empty if the pod as a whole asks. One of the two memory fields is set: MiB, or percent of the GPU.
    `core_request` 0 is a share without a guarantee.
    """

    container: str
    gpu_count: int
    core_request: int
    core_limit: int
    memory_mib: int | None = None
    memory_percent: int | None = None
    gpu_model: str | None = None
    affinity: str | None = None
    anti_affinity: str | None = None
    exclusion: str | None = None
    priority: int = 0

    def memory_on(self, gpu_memory_mib: int) -> int:
        """Return MiB on a GPU of this size; a percentage is rounded down, as in every format that has one."""
        if self.memory_mib is not None:
            return self.memory_mib
        return gpu_memory_mib * (self.memory_percent or 0) // WHOLE

    def claim_fields(self, gpu_memory_mib: int) -> dict[str, Any]:
        """Return the fields of a claim for this request, on GPUs of this size."""
        request = max(self.core_request, LEAST_CORE)
        return {
            "gpu_count": self.gpu_count,
            "core_request": request,
            "core_limit": max(self.core_limit, request),
            "memory_mib": max(self.memory_on(gpu_memory_mib), 1),
            "gpu_model": self.gpu_model,
            "affinity": self.affinity,
            "anti_affinity": self.anti_affinity,
            "exclusion": self.exclusion,
            "priority": self.priority,
        }


@dataclass(frozen=True, slots=True)
class Share:
    """A container's share of one GPU, identified by uuid or by index on the pod's node.

    `memory_mib` None: all memory of the GPU.
    """

    container: str
    core_request: int
    core_limit: int
    memory_mib: int | None
    gpu_uuid: str | None = None
    gpu_index: int | None = None
