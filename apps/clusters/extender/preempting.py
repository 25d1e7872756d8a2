"""The extender's preempt verb: extends kube-scheduler's victims until the pod's GPUs are free.

kube-scheduler counts a node's core as one sum and proposes victims per node by that sum. If the GPUs that would become
free do not fit the pod, further pods of lower priority are added: as few as possible, the lowest first. If no set
suffices the node is left out, so nothing is evicted in vain.
"""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from msgspec import UNSET, Struct, UnsetType

from apps.clusters.core.gpu_admission import View
from apps.clusters.extender.bodies import POD, NotUnderstood, fold
from apps.clusters.extender.cluster import Extended, NoLedger
from apps.clusters.extender.selecting import restriction
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


# The keys that are read of each node's entry, by field.
_VICTIMS: dict[str, Any] = {
    "NodeNameToVictims": {"Pods": POD, "NumPDBViolations": 0},
    "NodeNameToMetaVictims": {"Pods": {"UID": 0}, "NumPDBViolations": 0},
}


def preempt(cluster: Extended, body: bytes) -> bytes:
    """Return the nodes on which the victims' eviction frees the pod's GPUs, with all their victims.

    kube-scheduler's own victims stay on every node: they may be needed for other reasons. Raises NotUnderstood.
    """
    asked = _preemption(body)
    pod = parse_pod(asked.pod)
    try:
        restrict = restriction(cluster, pod)
    except NoLedger:
        return msgspec.json.encode({"NodeNameToMetaVictims": {}})
    named: dict[str, tuple[set[str], dict[str, int]]] = {}
    for name, victims in (asked.node_name_to_victims or {}).items():
        named[name] = {item.metadata.uid for item in victims.pods or ()}, _violations(victims)
    for name, meta in (asked.node_name_to_meta_victims or {}).items():
        named[name] = {item.uid for item in meta.pods or ()}, _violations(meta)
    good: dict[str, Any] = {}
    for name, (uids, violations) in named.items():
        further = _further(cluster, pod, name, uids, restrict) if pod.wants_gpu else set()
        if further is not None:
            # The disruption budgets of the further victims are not known here.
            good[name] = {"Pods": [{"UID": uid} for uid in sorted(uids | further)], **violations}
    return msgspec.json.encode({"NodeNameToMetaVictims": good})


def _preemption(body: bytes) -> _Preemption:
    """Parse a preemption request. Raises NotUnderstood."""
    try:
        whole = fold(msgspec.json.decode(body), {"Pod": POD, **dict.fromkeys(_VICTIMS, 0)})
        for name, known in _VICTIMS.items():
            # Names of nodes are not fields: they keep their case.
            if isinstance(whole, dict) and isinstance(there := whole.get(name), dict):
                whole[name] = {node: fold(victims, known) for node, victims in there.items()}
        return msgspec.convert(whole, _Preemption)
    except msgspec.MsgspecError as error:
        raise NotUnderstood(str(error)) from error


def _violations(victims: _Victims | _MetaVictims) -> dict[str, int]:
    number = victims.num_p_d_b_violations
    return {} if isinstance(number, UnsetType) else {"NumPDBViolations": number}


def _further(
    cluster: Extended, pod: PodState, node: str, gone: set[str], restrict: Callable[[View], View]
) -> set[str] | None:
    """Return the uids of further victims that free the pod's GPUs; None if no set does."""
    core, memory = cluster.mirror.capacity(node) or (0, 0)
    staying = [item for item in cluster.mirror.pods_on(node) if item.uid not in gone and item.key != pod.key]
    everybody = {item.uid for item in cluster.mirror.pods_on(node)}

    def fits(there: Sequence[PodState]) -> bool:
        shares = [item.shares for item in sorted(there, key=lambda item: item.key)]
        # A victim gives back what it was resized to.
        beside = cluster.mirror.beside_annotations(node, without=everybody - {item.uid for item in there})
        return restrict(View(node, core, memory, shares, beside)).fit(pod.containers) is not None

    # A pod that is only chosen for the node does not run yet, so it cannot be evicted.
    lower = [item for item in staying if item.priority < pod.priority and item.bound_to == node]
    return _fewest(staying, lower, fits)


def _fewest(
    staying: Sequence[PodState], lower: Sequence[PodState], fits: Callable[[Sequence[PodState]], bool]
) -> set[str] | None:
    """Return the victims among `lower`: remove all, then put them back one by one, the highest priority first."""
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
