"""The values of the core. Core is percent of one GPU, memory is MiB."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from apps.scheduling.core.mig import Mig

# The problem of a GPU that an operator cordoned, in `GpuState.unhealthy`.
CORDONED: Final = "cordoned"
# The problem of a GPU in MIG mode for all requests that name no profile.
MIG_MODE: Final = "in MIG mode"

# The kind of the label of a sharing group.
SHARING_GROUP: Final = "sharing-group"

# Amounts withheld from a request, by GPU: (core, MiB).
Held = Mapping[str, tuple[int, int]]
NOTHING: Held = {}


class Label(NamedTuple):
    """A label of a claim, on a GPU that carries the claim: once for each such claim.

    `kind` is one of `affinity`, `anti-affinity`, `exclusion`; a label has a meaning among its tenant's own only. The
    kind `sharing-group` has no tenant: see `Request.sharing_group`.
    """

    kind: str
    tenant: str
    name: str


@dataclass(frozen=True, slots=True)
class GpuState:
    """One GPU as a round sees it. `schedulable` is false on cordoned or lost nodes and for absent devices.

    It is false of a GPU in MIG mode, too: requests with a profile read its `mig` instead.
    """

    uuid: str
    node: str
    index: int
    model: str
    memory_mib: int
    core_free: int
    memory_free_mib: int
    schedulable: bool = True
    # Of a GPU that is unschedulable for this reason alone: its problem, in a few words, or CORDONED or MIG_MODE.
    unhealthy: str = ""
    labels: tuple[Label, ...] = ()
    # Amounts used twice, by claims and without one: this much must be given back before any of it is free.
    core_over: int = 0
    memory_over_mib: int = 0
    # None: it is not in MIG mode.
    mig: Mig | None = None

    @property
    def takes_claims(self) -> bool:
        """True if new claims may come, of whatever kind the GPU is for."""
        return self.mig.ready if self.mig is not None else self.schedulable

    def could_carry(self, request: "Request") -> bool:
        """Return True if the GPU, were it free, could carry its share of the request: right model, enough memory."""
        right_model = not request.models or self.model in request.models
        if request.profile is not None:
            return right_model and self.mig is not None and self.mig.ready and self.mig.has(request.profile)
        return self.schedulable and right_model and self.memory_mib >= request.memory_mib

    def could_help(self, request: "Request") -> bool:
        """Return True if the request, refused before, may fit now that this GPU changed. Never False if it does fit.

        If more than the GPU itself decides (labels, the machine's CPU and RAM), any change may help.
        """
        ruled = (request.affinity, request.anti_affinity, request.exclusion) != (None, None, None)
        if ruled or request.cpu_milli or request.ram_mib:
            return True
        if request.profile is not None:
            free_start = self.mig is not None and self.mig.choose(request.profile) is not None
            return free_start and self.could_carry(request)
        free = self.core_free >= request.core_request and self.memory_free_mib >= request.memory_mib
        return free and self.could_carry(request)

    def with_more(self, core: int, memory_mib: int) -> "GpuState":
        """Return the GPU with this much more free, or less; below zero it is used twice."""
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
    """A node. `links` are (GPU, GPU, word) with the agent's words; CPU or RAM None: not known, not limited.

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
    """The request of one claim: `gpu_count` GPUs of one node, on each `core_request` and `memory_mib`.

    `gpu_model` may name several models, joined by `|`. CPU and RAM are the node's, for the claim as a whole. `key` is
    the claim's own id: the policy `random` draws by it, nothing else reads it. Without GPUs: CPU and RAM of a node
    alone. `profile`: an instance of this MIG profile, on a GPU in MIG mode; `start`, of a running claim: its first
    slice. `sharing_group`: GPUs with claims of no other group are preferred, and never required.
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
    profile: str | None = None
    start: int | None = None
    sharing_group: str | None = None

    @property
    def labels(self) -> tuple[Label, ...]:
        """The labels of a GPU that carries the request."""
        group = () if self.sharing_group is None else (Label(SHARING_GROUP, "", self.sharing_group),)
        if self.affinity is None and self.anti_affinity is None and self.exclusion is None:
            return group
        kinds = (("affinity", self.affinity), ("anti-affinity", self.anti_affinity), ("exclusion", self.exclusion))
        return (*(Label(kind, self.tenant, name) for kind, name in kinds if name is not None), *group)

    @property
    def models(self) -> tuple[str, ...]:
        """The models that fit; none named: any."""
        return tuple(self.gpu_model.split("|")) if self.gpu_model is not None else ()


@dataclass(frozen=True, slots=True)
class Reason:
    """The reason for which `gpus` GPUs could not take the request."""

    code: str
    gpus: int
    detail: str


class Placed(NamedTuple):
    """The GPUs, by uuid, in index order; the node if no GPU was requested. A tuple: batches make many."""

    gpus: tuple[str, ...]
    node: str = ""


@dataclass(frozen=True, slots=True)
class Refused:
    """The number of GPUs that each filter removed; every GPU counts once, for the first filter that removed it."""

    reasons: tuple[Reason, ...]
