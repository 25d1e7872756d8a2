"""The extender's prioritize and bind verbs, which gpu-admission leaves to kube-scheduler."""

from typing import Any

import msgspec
from msgspec import Struct

from apps.clusters.core import gpu_admission
from apps.clusters.core.gpu_admission import NODE, View
from apps.clusters.extender.bodies import args, fold
from apps.clusters.extender.cluster import Extended
from apps.clusters.extender.predicates import path_of
from apps.clusters.kube.client import Refused, Unreachable
from apps.clusters.kube.objects import Pod
from apps.clusters.kube.pods import parse_pod

MOST_SCORE = 10


def prioritize(cluster: Extended, body: bytes) -> bytes:
    """Return scores by node: the node of the pod's chosen GPUs, else the fuller the better. Raises NotUnderstood."""
    asked = args(body)
    pod = parse_pod(asked.pod)
    promised = pod.annotations.get(NODE) or getattr(cluster.mirror.pod(pod.key), "annotations", {}).get(NODE)
    scores = []
    for name, core, memory in asked.nodes or cluster.mirror.sizes(asked.node_names or ()):
        view = cluster.mirror.view(name, core, memory, but=pod.key)
        if not pod.wants_gpu:
            # A pod without GPUs belongs on nodes without GPUs, or with few free.
            score = _used(view) if view.count else MOST_SCORE
        elif promised:
            score = MOST_SCORE if name == promised else 0
        else:
            score = _used(view)
        scores.append({"Host": name, "Score": score})
    return msgspec.json.encode(scores)


def _used(view: View) -> int:
    total = view.count * gpu_admission.WHOLE
    return (total - view.core_left) * MOST_SCORE // total if total else 0


class _Binding(Struct, rename={"name": "PodName", "namespace": "PodNamespace", "uid": "PodUID", "node": "Node"}):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    node: str = ""


_BINDING = dict.fromkeys(("PodName", "PodNamespace", "PodUID", "Node"), 0)


def bind(cluster: Extended, body: bytes) -> bytes:
    """Bind the pod to the node. A GPU pod is bound only to the node of its chosen GPUs.

    `Error` holds the reason of a failure; kube-scheduler then schedules the pod again.
    """
    try:
        asked = msgspec.convert(fold(msgspec.json.decode(body), _BINDING), _Binding)
    except msgspec.MsgspecError as error:
        return _error(str(error))
    path = path_of(asked.namespace, asked.name)
    try:
        pod = parse_pod(msgspec.convert(cluster.client.get(path), Pod))
        promised = pod.annotations.get(NODE, "")
        if pod.wants_gpu and promised != asked.node:
            return _error(f"the GPUs of pod {asked.name} were chosen on {promised or 'no node'}, not on {asked.node}")
        cluster.client.post(f"{path}/binding", _body(asked))
    except (Refused, Unreachable) as error:
        return _error(error.detail)
    return _error("")


def _body(asked: _Binding) -> dict[str, Any]:
    metadata = {"name": asked.name, "namespace": asked.namespace, "uid": asked.uid}
    target = {"apiVersion": "v1", "kind": "Node", "name": asked.node}
    return {"apiVersion": "v1", "kind": "Binding", "metadata": metadata, "target": target}


def _error(text: str) -> bytes:
    return msgspec.json.encode({"Error": text})
