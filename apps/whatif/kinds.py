"""Kinds of sharing: the GPUs of a pool under each, and what becomes of a past claim there.

- `turns`: a claim has the share that it asked for.
- `fair-share-current`, `fair-share-decayed`: as turns, with the queue in the order of this fair share.
- `mps`: as turns, but a program cannot be suspended, and a raise above the part that it started with needs a new start.
  Claims of several tenants on one GPU have a server each, which then take turns. The scheduler prefers other GPUs, as
  in a pool with MPS (`Request.sharing_group`), and the core that is given on such GPUs all the same is counted.
- `mps-per-tenant`: as `mps`, but a GPU takes claims of one tenant only, by an exclusion label on every claim.
- `mig`: all GPUs that can be are in MIG mode, and a claim has an instance of the smallest profile that covers it. It
  keeps its size. What the API refuses of claims with hard isolation does not fit here either; labels, schedules, the
  class `best-effort` and limits above the request, which it asks to leave out, are left out.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from apps.scheduling.core.mig import Mig, core_percent
from apps.scheduling.core.placement import never_fits
from apps.scheduling.core.values import MIG_MODE, GpuState, NodeState, Request
from apps.whatif.profiles import divided
from apps.whatif.values import Kind, PastClaim

# Reasons for which a claim cannot be served.
SEVERAL_GPUS: Final = "several-gpus"
GROUP: Final = "group"
POD: Final = "pod"
RESERVATION: Final = "reservation"
NO_MIG_GPU: Final = "no-mig-gpu"
PROFILE_TOO_SMALL: Final = "profile-too-small"
HARD_ISOLATION: Final = "hard-isolation"
IMPOSSIBLE: Final = "impossible"
REASONS: Final = (
    SEVERAL_GPUS, GROUP, POD, RESERVATION, NO_MIG_GPU, PROFILE_TOO_SMALL, HARD_ISOLATION, IMPOSSIBLE,
)  # fmt: skip

ONE_TENANT: Final = "one-tenant"


@dataclass(frozen=True, slots=True)
class Unfit:
    """A claim that the kind cannot serve, and the code of the reason."""

    reason: str


class Converter:
    """The pool's GPUs under one kind, and the requests of past claims there."""

    def __init__(self, kind: Kind, gpus: Iterable[GpuState], nodes: Iterable[NodeState]) -> None:
        self.kind, self._nodes = kind, tuple(nodes)
        self.gpus: tuple[GpuState, ...] = tuple(_in_mig_mode(gpus) if kind == "mig" else _whole(gpus))
        self._known: dict[Request, Request | Unfit] = {}

    def convert(self, claim: PastClaim) -> Request | Unfit:
        """Return the claim's request under this kind, or why it has none."""
        request, entry = claim.entry.request, claim.entry
        if self.kind == "mig":
            if claim.is_of_pod or claim.is_reserved or entry.group is not None:
                return Unfit(POD if claim.is_of_pod else GROUP if entry.group is not None else RESERVATION)
        elif request.profile is not None:
            return Unfit(HARD_ISOLATION)
        if self.kind == "mps":
            request = replace(request, sharing_group=entry.tenant)
        if self.kind == "mps-per-tenant" and request.exclusion is None:
            request = replace(request, exclusion=ONE_TENANT, tenant=entry.tenant)
        if request not in self._known:
            self._known[request] = self._convert(request)
        return self._known[request]

    def _convert(self, request: Request) -> Request | Unfit:
        if self.kind == "mig":
            found = self._smallest(request)
            if isinstance(found, Unfit):
                return found
            request = found
        return Unfit(IMPOSSIBLE) if never_fits(self.gpus, request, nodes=self._nodes) else request

    def _smallest(self, request: Request) -> Request | Unfit:
        """Return the request with the smallest profile that covers it, as a claim with hard isolation gets it."""
        if request.gpu_count > 1:
            return Unfit(SEVERAL_GPUS)
        gpus = [gpu for gpu in self.gpus if not request.models or gpu.model in request.models]
        kinds = _sizes([gpu.mig for gpu in gpus if gpu.mig is not None])
        if not kinds:
            return Unfit(NO_MIG_GPU)
        core, memory = request.core_request, request.memory_mib
        named = request.profile
        enough = [
            (size[1], size[0], name)
            for name, size in kinds.items()
            if (name == named if named is not None else size[0] >= core and size[1] >= memory)
        ]
        if not enough:
            return Unfit(PROFILE_TOO_SMALL)
        memory, core, name = min(enough)
        return Request(1, core, memory, gpu_model=request.gpu_model, node_selector=request.node_selector, profile=name)


def _sizes(found: Sequence[Mig]) -> dict[str, tuple[int, int]]:
    """Return (core, MiB) by profile; where two models differ by a few MiB, the lesser amount."""
    sizes: dict[str, tuple[int, int]] = {}
    for profiles in {mig.profiles for mig in found}:
        for profile in profiles:
            size = core_percent(profile, profiles), profile.memory_mib
            known = sizes.get(profile.name, size)
            sizes[profile.name] = min(known[0], size[0]), min(known[1], size[1])
    return sizes


def _in_mig_mode(gpus: Iterable[GpuState]) -> Iterable[GpuState]:
    for gpu, mig in divided(gpus):
        free = _free(gpu)
        yield free if mig is None else replace(free, schedulable=False, unhealthy=MIG_MODE, mig=mig)


def _whole(gpus: Iterable[GpuState]) -> Iterable[GpuState]:
    return map(_free, gpus)


def _free(gpu: GpuState) -> GpuState:
    """Return the GPU healthy and without a claim, not in MIG mode."""
    return GpuState(gpu.uuid, gpu.node, gpu.index, gpu.model, gpu.memory_mib, 100, gpu.memory_mib)
