"""Gangs: groups of pods of which a minimum is placed together or none.

kube-scheduler asks for one pod after the other. The first pod of a gang for which all needed pods are there is answered
after GPUs were chosen for the others, too, and written to them: from then on these GPUs are theirs, like those of any
pod that was chosen for.
"""

import logging

import msgspec

from apps.clusters.core.quantities import NotAQuantity
from apps.clusters.extender.cluster import Extended
from apps.clusters.formats.wishes import Gang, gang_of
from apps.clusters.kube.client import Refused, Unreachable
from apps.clusters.kube.objects import Pod
from apps.clusters.kube.pods import PodState, parse_pod

logger = logging.getLogger(__name__)


def others_due(cluster: Extended, pod: PodState) -> list[PodState] | str:
    """Return the pods that must be placed before this one, or the reason why its gang cannot be placed yet."""
    gang, there = gang_of(pod.annotations), cluster.mirror.pod(pod.key)
    if gang is None or (there is not None and there.counts_on):
        return []
    needed, waiting = _members(cluster, pod, gang)
    if len(waiting) < needed:
        # The watch may be behind kube-scheduler's: then the last pod of a gang would wait for an event that has passed.
        _read_again(cluster, pod, gang)
        needed, waiting = _members(cluster, pod, gang)
    if len(waiting) < needed:
        missing = needed - len(waiting)
        return f"gang {gang.name} needs {gang.minimum} pods at once, of which {missing} do not exist yet"
    return waiting[: max(needed, 0)]


def no_room(pod: PodState, placed: int) -> str:
    """Return the reason of a gang that does not fit."""
    gang = gang_of(pod.annotations)
    assert gang is not None
    return f"gang {gang.name} needs {gang.minimum} pods at once, and there is room for {placed} of those that wait"


def _members(cluster: Extended, pod: PodState, gang: Gang) -> tuple[int, list[PodState]]:
    """Return how many others must be placed with this pod, and those that wait to be."""
    members = [
        one
        for one in cluster.mirror.pods_in(pod.namespace)
        if one.key != pod.key and one.wants_gpu and gang_of(one.annotations) == gang
    ]
    placed = sum(bool(one.counts_on) for one in members)
    return gang.minimum - placed - 1, [one for one in members if not one.counts_on]


def _read_again(cluster: Extended, pod: PodState, gang: Gang) -> None:
    try:
        items, _ = cluster.client.list(f"/api/v1/namespaces/{pod.namespace}/pods")
    except (Refused, Unreachable) as error:
        logger.warning("pods of gang %s in %s could not be read: %s", gang.name, pod.namespace, error)
        return
    for item in items:
        try:
            found = msgspec.json.decode(item, type=Pod)
            other = found.metadata.name != pod.name and not parse_pod(found).over
            if other and gang_of(found.metadata.annotations or {}) == gang:
                cluster.mirror.take(found)
        except (msgspec.MsgspecError, NotAQuantity) as error:
            logger.warning("a pod of namespace %s is skipped: %s", pod.namespace, error)
