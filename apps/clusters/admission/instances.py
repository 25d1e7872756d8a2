"""Verdict on pods that ask for MIG instances by the resources of NVIDIA's device plugin.

Nothing rewrites such a pod. It is left to that plugin with a warning, served by our DeviceClasses, of which Kubernetes
makes a ResourceClaim for the pod (KEP-5004), or refused where neither is there.
"""

from collections.abc import Iterator, Sequence

from apps.clusters.admission.policy import LEAVE, REFUSE, SERVE, Policy
from apps.clusters.admission.reviews import Verdict
from apps.clusters.formats import mig_resources, pods
from apps.clusters.formats.mig_resources import MigRequest


def judge(pod: pods.Pod, policy: Policy) -> Verdict:
    """Return what is said of the pod's requests for instances; of a pod without any, nothing. Raises Unreadable."""
    asked = mig_resources.requests_of(pod)
    others = [one for one in asked if not one.is_ours]
    warnings, refusals = [], []
    if policy.mig == LEAVE:
        warnings = [_leave(one) for one in others]
    elif policy.mig == REFUSE:
        refusals = [_refuse(one) for one in others]
    # Nobody but us serves our DeviceClasses, whatever is said of NVIDIA's words.
    mine = asked if policy.mig == SERVE else [one for one in asked if one.is_ours]
    return Verdict(warnings=warnings, refusals=[*refusals, *_unserved(pod, mine)])


def _unserved(pod: pods.Pod, asked: Sequence[MigRequest]) -> Iterator[str]:
    """Yield what no DeviceClass can serve: the pod would stay pending."""
    for one in asked:
        who = f"Container {one.container} asks {one.resource}"
        if not one.is_plain:
            yield f"{who}: {_variant(one)}."
        elif one.amount > 1:
            yield f"{who} {one.amount} times: a program uses one MIG instance; write a container or a pod for each."
        elif one.is_init:
            yield f"{who}, and it ends before the others start: ask in a container or a sidecar."
    if len(asked) > 1:
        names = " and ".join(one.container for one in asked)
        yield f"{names} ask for an instance each, and a pod gets one: give each a ResourceClaim (docs/dra.md)."
    if asked and pods.node_of(pod):
        yield f"It names node {pods.node_of(pod)}, so no scheduler would allocate an instance: use a nodeSelector."


def _variant(one: MigRequest) -> str:
    ask = f"ask {one.plain_resource}" if one.plain_resource else "ask for a profile, as nvidia.com/mig-2g.20gb"
    if one.is_shared:
        return f"several pods would share an instance, and here each has one of its own; {ask}"
    if one.is_part:
        return f"parts of an instance are not offered; {ask}"
    return f"variants of a profile, as those with media engines, are not offered; {ask}"


def _leave(one: MigRequest) -> str:
    return (
        f"Container {one.container} asks {one.resource}: it is left to NVIDIA's device plugin, and no tenant is "
        "charged for it. Without that plugin the pod stays pending."
    )


def _refuse(one: MigRequest) -> str:
    remedy = f"or run the program by `gpucloud run --profile {one.profile}`" if one.is_plain else "or run it elsewhere"
    return (
        f"Container {one.container} asks {one.resource}, and pods of this cluster get no MIG instances: ask for a "
        f"share (tencent.com/vcuda-core and vcuda-memory), {remedy}."
    )
