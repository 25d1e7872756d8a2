"""Best fit by core and memory: which GPUs carry a request.

Filters run in a fixed order and each says how many GPUs it removed. Among the GPUs that fit, the fullest one after
placing wins, so that large holes stay whole; several GPUs come from the one node whose chosen GPUs are then fullest.
Ties fall to the node's name, the GPU's index and its uuid (a replaced device has the index of the old one), so that a
replay agrees.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

from apps.scheduling.core.values import GpuState, Placed, Reason, Refused, Request

SINGULAR = {"have": "has", "are": "is"}


def place(fleet: Iterable[GpuState], request: Request) -> Placed | Refused:
    """Choose GPUs for the request, or say why none will do."""
    fitting, reasons = _filter(list(fleet), request)
    by_node: dict[str, list[GpuState]] = defaultdict(list)
    for gpu in fitting:
        by_node[gpu.node].append(gpu)
    choices = [
        sorted(gpus, key=lambda gpu: _left(gpu, request))[: request.gpu_count]
        for gpus in by_node.values()
        if len(gpus) >= request.gpu_count
    ]
    if not choices:
        if fitting:
            most = max(len(gpus) for gpus in by_node.values())
            detail = f"{request.gpu_count} GPUs of one node are asked for; the most that fit on one node are {most}"
            reasons.append(Reason("gpus-on-one-node", len(fitting), detail))
        return Refused(tuple(reasons))
    best = min(choices, key=lambda gpus: [_left(gpu, request) for gpu in gpus])
    return Placed(tuple(gpu.uuid for gpu in sorted(best, key=lambda gpu: (gpu.index, gpu.uuid))))


def never_fits(fleet: Iterable[GpuState], request: Request) -> tuple[Reason, ...]:
    """Why the request would not fit even if every GPU were free and every node there; empty if it could."""
    free = [GpuState(gpu.uuid, gpu.node, gpu.index, gpu.model, gpu.memory_mib, 100, gpu.memory_mib) for gpu in fleet]
    answer = place(free, request)
    return answer.reasons if isinstance(answer, Refused) else ()


def _left(gpu: GpuState, request: Request) -> tuple[int, int, str, int, str]:
    """What stays free on the GPU; the smallest is the best fit."""
    return (
        gpu.core_free - request.core_request,
        gpu.memory_free_mib - request.memory_mib,
        gpu.node,
        gpu.index,
        gpu.uuid,
    )


def _filter(fleet: Sequence[GpuState], request: Request) -> tuple[list[GpuState], list[Reason]]:
    filters: list[tuple[str, Callable[[GpuState], bool], str]] = [
        ("node-unavailable", lambda gpu: gpu.schedulable, "are gone, or on a node that is cordoned or lost"),
        (
            "gpu-model",
            lambda gpu: request.gpu_model is None or gpu.model == request.gpu_model,
            f"are not of model {request.gpu_model}",
        ),
        (
            "gpu-memory",
            lambda gpu: gpu.memory_free_mib >= request.memory_mib,
            f"have less than {request.memory_mib} MiB free",
        ),
        (
            "gpu-core",
            lambda gpu: gpu.core_free >= request.core_request,
            f"have less than {request.core_request} percent of core free",
        ),
    ]
    left, reasons = list(fleet), []
    if not left:
        reasons.append(Reason("no-gpus", 0, "The pool has no GPUs"))
    for code, keeps, words in filters:
        kept = [gpu for gpu in left if keeps(gpu)]
        if removed := len(left) - len(kept):
            reasons.append(Reason(code, removed, _sentence(removed, words)))
        left = kept
    return left, reasons


def _sentence(gpus: int, words: str) -> str:
    """Seven GPUs *have* less than …, one GPU *has* less than …"""
    if gpus > 1:
        return f"{gpus} GPUs {words}"
    verb, _, rest = words.partition(" ")
    return f"1 GPU {SINGULAR[verb]} {rest}"
