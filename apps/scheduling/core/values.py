"""What the core speaks of. Core is percent of one GPU, memory is MiB."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GpuState:
    """One GPU as a round sees it. `schedulable` is false on cordoned or lost nodes and for absent devices."""

    uuid: str
    node: str
    index: int
    model: str
    memory_mib: int
    core_free: int
    memory_free_mib: int
    schedulable: bool = True


@dataclass(frozen=True, slots=True)
class Request:
    """What one claim asks: `gpu_count` GPUs of one node, on each `core_request` and `memory_mib`."""

    gpu_count: int
    core_request: int
    memory_mib: int
    gpu_model: str | None = None


@dataclass(frozen=True, slots=True)
class Reason:
    """Why `gpus` GPUs could not take the request."""

    code: str
    gpus: int
    detail: str


@dataclass(frozen=True, slots=True)
class Placed:
    """The GPUs, by uuid, in index order."""

    gpus: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Refused:
    """How many GPUs each filter removed; every GPU is counted once, by the first filter that removed it."""

    reasons: tuple[Reason, ...]
