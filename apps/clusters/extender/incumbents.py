"""Paths of gpushare's and HAMi's extenders, for a kube-scheduler that is configured for one of them.

Both decide as every other path: the mutating webhook has translated their pods into gpu-manager's resources. A pod that
was not translated is refused with instructions: it would be bound without a GPU.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec
from django.conf import settings

from apps.clusters.core.gpu_admission import WHOLE
from apps.clusters.extender import others, predicates
from apps.clusters.extender.bodies import filter_result
from apps.clusters.extender.cluster import Extended
from apps.clusters.formats import format_of, gpushare, hami
from apps.clusters.formats.asks import Unreadable
from apps.clusters.formats.gpu_manager import UNIT_MIB
from apps.clusters.kube.pods import PodState

INSPECT = "/gpushare-scheduler/inspect"
REWRITTEN = (gpushare.NAME, hami.NAME)


def sift(cluster: Extended, body: bytes) -> bytes:
    """Answer a filter request."""
    why = _not_rewritten(body)
    return predicates.answer(cluster, body) if why is None else filter_result(None, None, None, error=why)


VERBS: dict[str, Callable[[Extended, bytes], bytes]] = {
    "/gpushare-scheduler/filter": sift,
    "/gpushare-scheduler/bind": others.bind,
    "/filter": sift,
    "/bind": others.bind,
}


def inspect(cluster: Extended, node: str | None) -> bytes:
    """Return gpushare's report of nodes, their GPUs and the pods on each, in its unit; of one node or of all."""
    names = cluster.mirror.nodes() if node is None else [node]
    if node is not None and cluster.mirror.capacity(node) is None:
        return msgspec.json.encode({"nodes": [], "error": f"node {node} not found"})
    return msgspec.json.encode({"nodes": [_node(cluster, name) for name in names]})


def _node(cluster: Extended, name: str) -> dict[str, Any]:
    view = cluster.mirror.view(name, *(cluster.mirror.capacity(name) or (0, 0)))
    there = cluster.mirror.pods_on(name)
    total, used = _in_its_unit(view.memory_each), [_in_its_unit(view.memory_each - free) for free in view.memory_free]
    devices = [
        {"id": index, "totalGPU": total, "usedGPU": amount, "pods": list(_pods(there, index, view.memory_each))}
        for index, amount in enumerate(used)
    ]
    return {"name": name, "totalGPU": total * view.count, "usedGPU": sum(used), "devs": devices}


def _pods(there: Iterable[PodState], index: int, whole: int) -> Iterator[dict[str, Any]]:
    for pod in there:
        mine = [share for share in pod.shares if share.index == index]
        if mine:
            units = sum(whole if share.core >= WHOLE else share.memory for share in mine)
            yield {"name": pod.name, "namespace": pod.namespace, "usedGPU": _in_its_unit(units)}


def _in_its_unit(units: int) -> int:
    return -(-units * UNIT_MIB // settings.GPUSHARE_UNIT_MIB)


def _not_rewritten(body: bytes) -> str | None:
    """Return the reason to refuse a pod that was not translated, or None."""
    try:
        whole = msgspec.json.decode(body)
        pod = next(value for key, value in whole.items() if key.lower() == "pod")
        used = format_of(pod)
    except Unreadable as error:
        return error.detail
    except (msgspec.DecodeError, AttributeError, StopIteration, TypeError):
        return None
    if used is None or used.NAME not in REWRITTEN:
        return None
    return (
        f"It uses the format of {used.NAME}: set ADMISSION_TRANSLATE={used.NAME} for the admission webhooks, "
        "and create the pod again."
    )
