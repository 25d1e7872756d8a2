"""The plain back end: it examines every GPU for every request. Short and obvious, and so the specification."""

from collections.abc import Iterable
from dataclasses import replace

from apps.scheduling.core.placement.filters import Filter, reasons, removed_by
from apps.scheduling.core.placement.fragmentation import Prices
from apps.scheduling.core.placement.policies import POLICIES, Node
from apps.scheduling.core.placement.topology import Members
from apps.scheduling.core.values import Held, Label, Placed, Refused, Request


def decide(nodes: Iterable[Node], request: Request, policy: str, prices: Prices, held: Held) -> Placed | Refused:
    """Choose GPUs for the request on one of the nodes, which come in order, or return why none fits."""
    nodes = list(nodes)
    bound = request.affinity is not None and _carried(nodes, Label("affinity", request.tenant, request.affinity))
    prices = replace(prices, draw=draw(request.key))
    removed, most = [0] * Filter.GPUS_ON_ONE_NODE, 0
    best: list[tuple[Node, Members]] = []
    best_score = 0
    for node in nodes:
        verdicts = [removed_by(gpu, node.state, request, held, bound=bound, whole=prices.whole) for gpu in node.gpus]
        for verdict in verdicts:
            removed[verdict] += 1
        fitting = tuple(place for place, verdict in enumerate(verdicts) if verdict is Filter.NONE)
        most = max(most, len(fitting))
        if len(fitting) >= needed(request):
            score, chosen = POLICIES[policy](node, fitting, request, prices)
            if not best or score > best_score:
                best, best_score = [], score
            if score == best_score:
                best.append((node, chosen))
    if not best:
        sick = [gpu.unhealthy for node in nodes for gpu in node.gpus if gpu.unhealthy]
        return Refused(reasons(request, removed, most, sick))
    node, chosen = best[prices.draw % len(best) if policy == "random" else 0]
    return as_placed(node.state.name, [node.gpus[place].uuid for place in chosen])


def as_placed(node: str, gpus: Iterable[str]) -> Placed:
    """Return the answer; it names the node only if it names no GPU."""
    uuids = tuple(gpus)
    return Placed(uuids) if uuids else Placed((), node)


def needed(request: Request) -> int:
    """Return the number of GPUs of one node that must fit; a request without GPUs needs a node with one."""
    return max(request.gpu_count, 1)


def draw(key: str) -> int:
    """Return a number that looks random, always the same for the same key (FNV-1a of 64 bits)."""
    value = 0xCBF29CE484222325
    for byte in key.encode():
        value = (value ^ byte) * 0x100000001B3 % (1 << 64)
    # Its low bits follow the last byte too closely.
    return (value ^ value >> 32) >> 1


def _carried(nodes: Iterable[Node], label: Label) -> bool:
    return any(label in gpu.labels for node in nodes for gpu in node.gpus)
