"""What every format is read into, and what it is written from.

A container (or a whole pod) *asks*; a pod that runs *holds* shares of GPUs. Core is percent of one GPU, memory is MiB
on each of its GPUs.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from gpucloud.errors import Invalid

WHOLE = 100
# A claim has at least one percent: what is guaranteed nothing may still be told apart on its GPU.
LEAST_CORE = 1


class Unreadable(Invalid):
    """A pod says something that its format does not allow, or that contradicts itself."""

    code: ClassVar[str] = "unreadable-pod"
    title = "The pod cannot be read"


@dataclass(frozen=True, slots=True)
class Ask:
    """What is asked for: `gpu_count` GPUs of one node, on each of them these shares.

    `container` is empty where the pod as a whole asks. Of memory one of the two is given: MiB, or percent of the GPU.
    `core_request` 0 is a share without a guarantee. `gpu_uuids` empty: any GPU will do.
    """

    container: str
    gpu_count: int
    core_request: int
    core_limit: int
    memory_mib: int | None = None
    memory_percent: int | None = None
    gpu_model: str | None = None
    gpu_uuids: tuple[str, ...] = ()
    affinity: str | None = None
    anti_affinity: str | None = None
    exclusion: str | None = None
    priority: int = 0

    def memory_on(self, gpu_memory_mib: int) -> int:
        """MiB on a GPU of this size; a percentage is rounded down, as all who use one do."""
        if self.memory_mib is not None:
            return self.memory_mib
        return gpu_memory_mib * (self.memory_percent or 0) // WHOLE

    def claimed(self, gpu_memory_mib: int) -> dict[str, Any]:
        """The fields of a claim for it, on GPUs of this size."""
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
    """What a container holds of one GPU, which is named by its uuid or by its index on the pod's node.

    `memory_mib` None: all of the GPU.
    """

    container: str
    core_request: int
    core_limit: int
    memory_mib: int | None
    gpu_uuid: str | None = None
    gpu_index: int | None = None
