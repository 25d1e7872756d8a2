"""Gangs: groups of pods of which a minimum is placed together or none.

kube-scheduler asks for one pod after the other. The first pod of a gang for which all needed pods are there is answered
after GPUs were chosen for the others, too, and written to them: from then on these GPUs are theirs, like those of any
pod that was chosen for.
"""

from apps.clusters.formats.wishes import gang_of
from apps.clusters.kube.mirror import Mirror
from apps.clusters.kube.pods import PodState


def others_due(mirror: Mirror, pod: PodState) -> list[PodState] | str:
    """Return the pods that must be placed before this one, or the reason why its gang cannot be placed yet."""
    gang, there = gang_of(pod.annotations), mirror.pod(pod.key)
    if gang is None or (there is not None and there.counts_on):
        return []
    members = [one for one in mirror.pods_in(pod.namespace) if one.key != pod.key and gang_of(one.annotations) == gang]
    waiting = [one for one in members if not one.counts_on and one.wants_gpu]
    needed = gang.minimum - sum(bool(one.counts_on) for one in members) - 1
    if needed <= 0:
        return []
    if len(waiting) < needed:
        missing = needed - len(waiting)
        return f"gang {gang.name} needs {gang.minimum} pods at once, of which {missing} do not exist yet"
    return waiting[:needed]


def no_room(pod: PodState, placed: int) -> str:
    """Return the reason of a gang that does not fit."""
    gang = gang_of(pod.annotations)
    assert gang is not None
    return f"gang {gang.name} needs {gang.minimum} pods at once, and there is room for {placed} of those that wait"
