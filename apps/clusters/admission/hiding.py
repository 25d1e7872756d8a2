"""Webhook that hides the node's GPUs from containers that ask for none.

Where NVIDIA's runtime is the default of a node, it gives a container all GPUs that NVIDIA_VISIBLE_DEVICES names, and
CUDA's images set that variable to `all`. A value in the pod's spec replaces the image's.
"""

import logging
from collections.abc import Mapping
from typing import Any

from apps.clusters.admission.policy import Policy
from apps.clusters.admission.reviews import Review, Verdict
from apps.clusters.formats import RESOURCES, kubeshare, pods

logger = logging.getLogger(__name__)

HIDDEN = "void"
# Resources of NVIDIA's own device plugin, which sets the variable itself.
VENDOR = "nvidia.com/"
KINDS = ("initContainers", "containers", "ephemeralContainers")


def hide(review: Review, policy: Policy) -> Verdict:
    """Return the patch that hides the GPUs from containers that ask for none; nothing for trusted users."""
    if review.kind != "Pod" or review.operation not in ("CREATE", "UPDATE") or policy.trusts(review.who):
        return Verdict()
    try:
        return Verdict(patch=_patch(review.thing, review.old, policy))
    # The API server itself refuses objects that do not match Kubernetes' schema.
    except (AttributeError, LookupError, RecursionError, TypeError, ValueError):
        logger.info("%s in %s is not understood", review.kind, review.namespace, exc_info=True)
        return Verdict()


def _patch(pod: pods.Pod, old: pods.Pod, policy: Policy) -> list[dict[str, Any]]:
    # A pod of KubeShare 2 asks in labels: rewritten, its first container names a resource.
    as_a_whole = kubeshare.NAME not in policy.translated and kubeshare.prefix_of(pod) is not None
    if as_a_whole:
        return []
    there = {(kind, item["name"]) for kind in KINDS for item in (old.get("spec") or {}).get(kind) or []}
    return [
        {"op": "add", "path": f"/spec/{kind}/{place}/env", "value": _hidden(container)}
        for kind in KINDS
        for place, container in enumerate((pod.get("spec") or {}).get(kind) or [])
        # Containers of a pod cannot change; only a new ephemeral one comes by an update.
        if (kind, container["name"]) not in there and not _asks(container) and not _is_hidden(container)
    ]


def _asks(container: Mapping[str, Any]) -> bool:
    names = [name for kind in ("limits", "requests") for name in pods.resources(container, kind)]
    return any(name in RESOURCES or name.startswith(VENDOR) for name in names)


def _is_hidden(container: Mapping[str, Any]) -> bool:
    # Of several entries of a name the last one counts.
    values = [entry.get("value") for entry in container.get("env") or [] if entry.get("name") == kubeshare.VISIBLE]
    return values == [HIDDEN]


def _hidden(container: Mapping[str, Any]) -> list[dict[str, Any]]:
    kept = [entry for entry in container.get("env") or [] if entry.get("name") != kubeshare.VISIBLE]
    return [*kept, {"name": kubeshare.VISIBLE, "value": HIDDEN}]
