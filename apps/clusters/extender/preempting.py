"""Preempt: for whose end a pod of higher priority may be placed.

kube-scheduler counts a node's core as one sum and proposes for each node whom it would end by that. Where the GPUs that
would then be free do not carry the pod, further pods of lower priority are named, as few as do, the lowest first; where
none would do, the node is left out, and nobody there is ended for nothing.
"""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from msgspec import UNSET, Struct, UnsetType

from apps.clusters.core.gpu_admission import View
from apps.clusters.extender.bodies import POD, NotUnderstood, fold
from apps.clusters.extender.predicates import Extended
from apps.clusters.kube.objects import Pod
from apps.clusters.kube.pods import PodState, parse_pod


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

    Whom it named goes everywhere, as they may have to for other reasons. Raises NotUnderstood.
    """
    asked = _preemption(body)
    pod = parse_pod(asked.pod)
    named: dict[str, tuple[set[str], dict[str, int]]] = {}
    for name, victims in (asked.node_name_to_victims or {}).items():
        named[name] = {item.metadata.uid for item in victims.pods or ()}, _violations(victims)
    for name, meta in (asked.node_name_to_meta_victims or {}).items():
        named[name] = {item.uid for item in meta.pods or ()}, _violations(meta)
    good: dict[str, Any] = {}
    for name, (uids, violations) in named.items():
        further = _further(cluster, pod, name, uids) if pod.wants_gpu else set()
        if further is not None:
            # Which budgets the further ones break is not known here.
            good[name] = {"Pods": [{"UID": uid} for uid in sorted(uids | further)], **violations}
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


def _further(cluster: Extended, pod: PodState, node: str, gone: set[str]) -> set[str] | None:
    """Who must go besides, by uid, for the pod's GPUs to be free; None: nobody's going is enough."""
    core, memory = cluster.mirror.capacity(node) or (0, 0)
    staying = [item for item in cluster.mirror.pods_on(node) if item.uid not in gone and item.key != pod.key]
    others = cluster.mirror.others_on(node)

    def fits(there: Sequence[PodState]) -> bool:
        shares = [item.shares for item in sorted(there, key=lambda item: item.key)]
        return View(node, core, memory, shares, others).fit(pod.containers) is not None

    # What is only chosen for the node is not there to be ended.
    lower = [item for item in staying if item.priority < pod.priority and item.bound_to == node]
    return _fewest(staying, lower, fits)


def _fewest(
    staying: Sequence[PodState], lower: Sequence[PodState], fits: Callable[[Sequence[PodState]], bool]
) -> set[str] | None:
    """Of `lower`, who has to go: all of them are taken out, and put back one by one, the highest first."""
    if fits(staying):
        return set()
    left = [item for item in staying if item not in lower]
    if not fits(left):
        return None
    going = set[str]()
    for item in sorted(lower, key=lambda item: (-item.priority, item.key)):
        if fits([*left, item]):
            left.append(item)
        else:
            going.add(item.uid)
    return going
