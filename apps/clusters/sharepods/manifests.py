"""A SharePod's pod, and its status from the pod. Pure.

The pod asks for its share in gpu-manager's resources and carries its GPU index, so the kubelet, the device plugin, the
namespace's quotas and the scheduler's count of GPUs treat it like any other pod.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from apps.clusters.formats import gpu_manager, pods, translation
from apps.clusters.formats.asks import WHOLE, Ask, Share
from apps.clusters.sharepods.definition import API_VERSION

LABEL = pods.SHAREPOD
LONGEST_LABEL = 63


@dataclass(frozen=True, slots=True)
class Place:
    """A GPU and its node, by the node's Kubernetes name."""

    node: str
    gpu_index: int
    gpu_uuid: str


def pod_of(sharepod: Mapping[str, Any], ask: Ask, place: Place, *, claim: str, at_ns: int) -> dict[str, Any]:
    """Return the SharePod's pod on the node and GPU of its claim. Its first container gets the GPU."""
    meta = sharepod["metadata"]
    spec = {**sharepod["spec"], "nodeName": place.node}
    first, *others = spec["containers"]
    amounts = _amounts(ask)
    spec["containers"] = [
        {**first, "resources": translation.replace_resources(first, tuple(amounts), amounts)},
        *others,
    ]
    share = Share(first["name"], ask.core_request, ask.core_limit, ask.memory_mib, gpu_index=place.gpu_index)
    kept = {key: value for key, value in (meta.get("annotations") or {}).items() if not key.startswith("kubectl.")}
    asking = {"metadata": {}, "spec": spec}
    said = gpu_manager.annotations_for(asking, [share], node=place.node, at_ns=at_ns)
    ceiling = max(ask.core_limit, int(amounts[gpu_manager.CORE]))
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": meta["name"],
            "namespace": meta["namespace"],
            "labels": {**(meta.get("labels") or {}), LABEL: meta["uid"][:LONGEST_LABEL]},
            "annotations": {**kept, **said, gpu_manager.CORE_LIMIT: str(ceiling), pods.CLAIM: claim},
            "ownerReferences": [
                {
                    "apiVersion": API_VERSION,
                    "kind": "SharePod",
                    "name": meta["name"],
                    "uid": meta["uid"],
                    "controller": True,
                    "blockOwnerDeletion": True,
                }
            ],
        },
        "spec": spec,
    }


def is_at(pod: Mapping[str, Any], place: Place) -> bool:
    """Return True if the pod was created for this place."""
    index = pods.annotations(pod).get(f"{gpu_manager.INDEX_PREFIX}0", str(place.gpu_index))
    return (pods.node_of(pod), index) == (place.node, str(place.gpu_index))


def status_of(pod: Mapping[str, Any] | None, place: Place | None, *, phase: str, message: str) -> dict[str, Any]:
    """Return KubeShare's status with a phase and its reason."""
    status: dict[str, Any] = {"Phase": phase, "Message": message}
    if place is not None:
        status |= {"BoundDeviceID": place.gpu_uuid, "Node": place.node}
    if pod is not None:
        status |= {"PodStatus": pod.get("status") or {}, "PodObjectMeta": _pod_metadata(pod.get("metadata") or {})}
    return status


def _amounts(ask: Ask) -> dict[str, int]:
    if ask.core_request == WHOLE:
        return {gpu_manager.CORE: WHOLE}
    return translation.translate(ask)


def _pod_metadata(meta: Mapping[str, Any]) -> dict[str, Any]:
    return {key: meta[key] for key in ("name", "namespace", "uid", "creationTimestamp") if key in meta}
