"""Prioritize, bind and preempt: what the original leaves to kube-scheduler."""

from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec import UNSET, Struct, UnsetType

from apps.clusters.core import gpu_admission
from apps.clusters.core.gpu_admission import NODE, View
from apps.clusters.extender.bodies import POD, NotUnderstood, args, fold
from apps.clusters.extender.predicates import Extended, path_of
from apps.clusters.kube.client import Refused, Unreachable
from apps.clusters.kube.objects import Pod
from apps.clusters.kube.pods import PodSeen, seen

MOST_SCORE = 10


def prioritize(cluster: Extended, body: bytes) -> bytes:
    """Scores by node: the one that the pod's GPUs were chosen on, else the fuller the better. Raises NotUnderstood."""
    asked = args(body)
    pod = seen(asked.pod)
    promised = pod.annotations.get(NODE) or getattr(cluster.mirror.pod(pod.key), "annotations", {}).get(NODE)
    scores = []
    for name, core, memory in asked.nodes or cluster.mirror.sizes(asked.node_names or ()):
        view = cluster.mirror.view(name, core, memory, but=pod.key)
        if not pod.wants_gpu:
            # Where there are no GPUs, or few are free, what needs none is in nobody's way.
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
    """Bind the pod to the node. A GPU pod goes to the node that its GPUs were chosen on, or nowhere.

    What is wrong is in `Error`; kube-scheduler then begins anew with the pod, and so does the filter.
    """
    try:
        asked = msgspec.convert(fold(msgspec.json.decode(body), _BINDING), _Binding)
    except msgspec.MsgspecError as error:
        return _error(str(error))
    path = path_of(asked.namespace, asked.name)
    try:
        pod = seen(msgspec.convert(cluster.client.get(path), Pod))
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


class _Uid(Struct, rename={"uid": "UID"}):
    uid: str = ""


class _MetaVictims(Struct, rename="pascal"):
    pods: list[_Uid] | None = None
    num_p_d_b_violations: int | UnsetType = msgspec.field(default=UNSET, name="NumPDBViolations")


class _Victims(Struct, rename="pascal"):
    pods: list[Pod] | None = None
    num_p_d_b_violations: int | UnsetType = msgspec.field(default=UNSET, name="NumPDBViolations")


class _Preemption(Struct, rename="pascal"):
    pod: Pod
    node_name_to_victims: dict[str, _Victims] | None = None
    node_name_to_meta_victims: dict[str, _MetaVictims] | None = None


# By the field, what is read of each node's entry in it.
_VICTIMS: dict[str, Any] = {
    "NodeNameToVictims": {"Pods": POD, "NumPDBViolations": 0},
    "NodeNameToMetaVictims": {"Pods": {"UID": 0}, "NumPDBViolations": 0},
}


def preempt(cluster: Extended, body: bytes) -> bytes:
    """Of the nodes on which kube-scheduler would end pods for this one: those where its GPUs would then be free.

    Each with the same victims: who needs to go for other reasons is kube-scheduler's to say. Raises NotUnderstood.
    """
    asked = _preemption(body)
    pod = seen(asked.pod)
    by_uid: dict[str, set[str]] = {}
    kept: dict[str, Any] = {}
    for name, victims in (asked.node_name_to_victims or {}).items():
        by_uid[name] = {item.metadata.uid for item in victims.pods or ()}
        kept[name] = {"Pods": [{"UID": uid} for uid in sorted(by_uid[name])], **_violations(victims)}
    for name, meta in (asked.node_name_to_meta_victims or {}).items():
        by_uid[name] = {item.uid for item in meta.pods or ()}
        kept[name] = {"Pods": [{"UID": uid} for uid in sorted(by_uid[name])], **_violations(meta)}
    good = {name: kept[name] for name, uids in by_uid.items() if not pod.wants_gpu or _fits(cluster, pod, name, uids)}
    return msgspec.json.encode({"NodeNameToMetaVictims": good})


def _preemption(body: bytes) -> _Preemption:
    """Raises NotUnderstood."""
    try:
        whole = fold(msgspec.json.decode(body), {"Pod": POD, **dict.fromkeys(_VICTIMS, 0)})
        for name, known in _VICTIMS.items():
            # Nodes' names are no fields: they stay as they are.
            if isinstance(whole, dict) and isinstance(there := whole.get(name), dict):
                whole[name] = {node: fold(victims, known) for node, victims in there.items()}
        return msgspec.convert(whole, _Preemption)
    except msgspec.MsgspecError as error:
        raise NotUnderstood(str(error)) from error


def _violations(victims: _Victims | _MetaVictims) -> dict[str, int]:
    number = victims.num_p_d_b_violations
    return {} if isinstance(number, UnsetType) else {"NumPDBViolations": number}


def _fits(cluster: Extended, pod: PodSeen, node: str, gone: set[str]) -> bool:
    core, memory = cluster.mirror.capacity(node) or (0, 0)
    staying: Iterable[PodSeen] = (item for item in cluster.mirror.pods_on(node) if item.uid not in gone)
    view = View(
        node, core, memory, [item.shares for item in staying if item.key != pod.key], cluster.mirror.others_on(node)
    )
    return view.fit(pod.containers) is not None
