"""Placement of requests with a MIG profile: on which GPU the instance is made; where on it, `core.mig` says.

A GPU counts for the first filter that removes it, as in `filters`. Of the GPUs that fit, the one is chosen on which the
instance costs the least room of all profiles; of these, the first by node, index and uuid. The pool's placement policy
is about shares of whole GPUs and does not matter here.
"""

from collections import Counter
from collections.abc import Iterable, Mapping

from apps.scheduling.core.mig import Mig
from apps.scheduling.core.placement.filters import Filter, as_sentence
from apps.scheduling.core.values import GpuState, Held, NodeState, Placed, Reason, Refused, Request

NOTHING = (0, 0)
NOT_MIG, NO_PROFILE, NO_PLACE = "gpu-not-mig", "mig-profile", "mig-place"


def decide(
    gpus: Iterable[GpuState], request: Request, *, nodes: Mapping[str, NodeState], others: int, held: Held
) -> Placed | Refused:
    """Choose a GPU for the request, or return why none fits.

    `gpus`: those in MIG mode, in order; `others`: the number of GPUs of the pool that are not.
    """
    assert request.profile is not None
    removed: Counter[str] = Counter({NOT_MIG: others} if others else {})
    best: tuple[int, str] | None = None
    for gpu in gpus:
        code = _removed_by(gpu, nodes.get(gpu.node) or NodeState(gpu.node), request, held)
        if code:
            removed[code] += 1
            continue
        price = _price(gpu, request.profile)
        if best is None or price < best[0]:
            best = price, gpu.uuid
    return Placed((best[1],)) if best is not None else Refused(_reasons(request, removed))


def _price(gpu: GpuState, name: str) -> int:
    """Return the price of the cheapest place on the GPU, which has one."""
    mig, profile = _known(gpu), _known(gpu).find(name)
    start = mig.choose(name)
    assert profile is not None
    assert start is not None
    return mig.price(profile, start)


def _known(gpu: GpuState) -> Mig:
    assert gpu.mig is not None
    return gpu.mig


def _removed_by(gpu: GpuState, node: NodeState, request: Request, held: Held) -> str:
    """Return the code of the first filter that removes the GPU; empty: it fits."""
    mig, profile = _known(gpu), request.profile or ""
    if not mig.ready:
        return Filter.NODE_UNAVAILABLE.code
    if not set(request.node_selector) <= set(node.labels):
        return Filter.NODE_SELECTOR.code
    if request.models and gpu.model not in request.models:
        return Filter.GPU_MODEL.code
    if not mig.has(profile):
        return NO_PROFILE
    if not mig.free_starts(profile):
        return NO_PLACE
    core, memory = held.get(gpu.uuid, NOTHING)
    if gpu.core_free < request.core_request or gpu.memory_free_mib < request.memory_mib:
        return NO_PLACE
    kept = gpu.core_free - core < request.core_request or gpu.memory_free_mib - memory < request.memory_mib
    return Filter.RESERVED.code if kept else ""


def _reasons(request: Request, removed: Mapping[str, int]) -> tuple[Reason, ...]:
    if not removed:
        return (Reason("no-gpus", 0, "The pool has no GPUs"),)
    wanted = ", ".join(f"{key}={value}" for key, value in request.node_selector)
    words = {
        NOT_MIG: "are not in MIG mode",
        Filter.NODE_UNAVAILABLE.code: "are unavailable (cordoned or unhealthy, or their node is, or is NotReady)",
        Filter.NODE_SELECTOR.code: f"are on a node without the labels {wanted}",
        Filter.GPU_MODEL.code: f"are not of model {' or '.join(request.models)}",
        NO_PROFILE: f"have no MIG profile {request.profile}",
        NO_PLACE: f"have no free place for an instance of {request.profile}",
        Filter.RESERVED.code: "are reserved",
    }
    return tuple(
        Reason(code, removed[code], as_sentence(removed[code], text))
        for code, text in words.items()
        if removed.get(code)
    )
