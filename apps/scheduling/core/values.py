"""What the core speaks of. Core is percent of one GPU, memory is MiB."""

from dataclasses import dataclass, replace
from typing import NamedTuple


class Label(NamedTuple):
    """A label of a claim, on a GPU that carries the claim: once for each such claim.

    `kind` is one of `affinity`, `anti-affinity`, `exclusion`; a label means something among its tenant's own only.
    """

    kind: str
    tenant: str
    name: str


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
    # Of one that is not schedulable for this alone: what it suffers from, in a few words.
    unhealthy: str = ""
    labels: tuple[Label, ...] = ()
    # Used of it twice, by claims and without one: so much must be given back before any of it is free.
    core_over: int = 0
    memory_over_mib: int = 0

    def with_more(self, core: int, memory_mib: int) -> "GpuState":
        """The same with so much more free, or less; below zero it is used twice."""
        core += self.core_free - self.core_over
        memory_mib += self.memory_free_mib - self.memory_over_mib
        return replace(
            self,
            core_free=max(0, core),
            core_over=max(0, -core),
            memory_free_mib=max(0, memory_mib),
            memory_over_mib=max(0, -memory_mib),
        )


@dataclass(frozen=True, slots=True)
class NodeState:
    """A machine. `links` are (GPU, GPU, word) with the agent's words; None of CPU or RAM: not known, not limited.

    `cpu_milli` is all the CPU it has; None: not known.
    """

    name: str
    labels: tuple[tuple[str, str], ...] = ()
    links: tuple[tuple[str, str, str], ...] = ()
    cpu_milli_free: int | None = None
    ram_mib_free: int | None = None
    cpu_milli: int | None = None


@dataclass(frozen=True, slots=True)
class Request:
    """What one claim asks: `gpu_count` GPUs of one node, on each `core_request` and `memory_mib`.

    `gpu_model` may name several models, joined by `|`. CPU and RAM are the node's, for the claim as a whole. `key` is
    the claim's own id: the policy `random` draws by it, nothing else reads it. No GPUs: CPU and RAM of a node alone.
    """

    gpu_count: int
    core_request: int
    memory_mib: int
    gpu_model: str | None = None
    tenant: str = ""
    affinity: str | None = None
    anti_affinity: str | None = None
    exclusion: str | None = None
    node_selector: tuple[tuple[str, str], ...] = ()
    cpu_milli: int = 0
    ram_mib: int = 0
    key: str = ""

    @property
    def labels(self) -> tuple[Label, ...]:
        """What a GPU that carries it bears for it."""
        if self.affinity is None and self.anti_affinity is None and self.exclusion is None:
            return ()
        kinds = (("affinity", self.affinity), ("anti-affinity", self.anti_affinity), ("exclusion", self.exclusion))
        return tuple(Label(kind, self.tenant, name) for kind, name in kinds if name is not None)

    @property
    def models(self) -> tuple[str, ...]:
        """The models that will do; none named: any."""
        return tuple(self.gpu_model.split("|")) if self.gpu_model is not None else ()


@dataclass(frozen=True, slots=True)
class Reason:
    """Why `gpus` GPUs could not take the request."""

    code: str
    gpus: int
    detail: str


class Placed(NamedTuple):
    """The GPUs, by uuid, in index order; the node where no GPU was asked for. A tuple: batches make many."""

    gpus: tuple[str, ...]
    node: str = ""


@dataclass(frozen=True, slots=True)
class Refused:
    """How many GPUs each filter removed; every GPU is counted once, by the first filter that removed it."""

    reasons: tuple[Reason, ...]
