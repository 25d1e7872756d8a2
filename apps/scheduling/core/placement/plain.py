"""The plain back end: every GPU is looked at for every request. Short and obvious, and so the one that is believed."""

from collections.abc import Iterable, Mapping

from apps.scheduling.core.placement.filters import Filter, reasons, removed_by
from apps.scheduling.core.placement.policies import Choice, Node, Policy
from apps.scheduling.core.values import Label, Placed, Refused, Request

Held = Mapping[str, tuple[int, int]]


def decide(nodes: Iterable[Node], request: Request, policy: Policy, held: Held, whole: int) -> Placed | Refused:
    """Choose GPUs for the request on one of the nodes, which come in order, or say why none will do."""
    nodes = list(nodes)
    bound = request.affinity is not None and _carried(nodes, Label("affinity", request.tenant, request.affinity))
    removed, most = [0] * Filter.GPUS_ON_ONE_NODE, 0
    best: Choice | None = None
    for node in nodes:
        verdicts = [removed_by(gpu, node.state, request, held, bound=bound, whole=whole) for gpu in node.gpus]
        for verdict in verdicts:
            removed[verdict] += 1
        fitting = [gpu for gpu, verdict in zip(node.gpus, verdicts, strict=True) if verdict is Filter.NONE]
        most = max(most, len(fitting))
        if len(fitting) >= request.gpu_count:
            choice = policy(node, fitting, request)
            if best is None or choice[0] > best[0]:
                best = choice
    if best is None:
        return Refused(reasons(request, removed, most))
    return Placed(tuple(gpu.uuid for gpu in sorted(best[1], key=lambda gpu: (gpu.index, gpu.uuid))))


def _carried(nodes: Iterable[Node], label: Label) -> bool:
    return any(label in gpu.labels for node in nodes for gpu in node.gpus)
