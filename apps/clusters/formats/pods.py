"""Accessors for pods as the API server returns them: plain dictionaries, of which any part may be missing."""

from collections.abc import Mapping
from typing import Any

from apps.clusters.core import quantities
from apps.clusters.formats.asks import Unreadable

Pod = Mapping[str, Any]
Container = Mapping[str, Any]

# The claim for which a pod was created.
CLAIM = "gpucloud.io/claim"
# The answer to a resize.
RESIZE_STATUS = "gpucloud.io/resize-status"
# Label of the pods of SharePods.
SHAREPOD = "gpucloud.io/sharepod"
# `restartPolicy` of an init container that is a sidecar.
SIDECAR = "Always"
ENDED = frozenset({"Succeeded", "Failed"})
# The largest plausible number of GPUs, percent or MiB; also within the database's columns.
MOST = 2**31 - 1
LONGEST = 32


def name_of(pod: Pod) -> str:
    """Return `namespace/name`, for messages."""
    meta = pod.get("metadata") or {}
    return f"{meta.get('namespace') or 'default'}/{meta.get('name') or meta.get('generateName') or '?'}"


def annotations(pod: Pod) -> Mapping[str, str]:
    """Return the pod's annotations."""
    return (pod.get("metadata") or {}).get("annotations") or {}


def labels(pod: Pod) -> Mapping[str, str]:
    """Return the pod's labels."""
    return (pod.get("metadata") or {}).get("labels") or {}


def containers(pod: Pod) -> list[Container]:
    """Return `spec.containers`, in order."""
    return list((pod.get("spec") or {}).get("containers") or [])


def init_containers(pod: Pod) -> list[Container]:
    """Return `spec.initContainers`, in order."""
    return list((pod.get("spec") or {}).get("initContainers") or [])


def lasting_containers(pod: Pod) -> list[Container]:
    """Return the containers that last as long as the pod: `spec.containers`, then the sidecars among the init ones.

    An annotation of a GPU names a container by its index in this list.
    """
    return [*containers(pod), *(one for one in init_containers(pod) if is_sidecar(one))]


def is_sidecar(container: Container) -> bool:
    """Return True for an init container that runs until the pod ends."""
    return container.get("restartPolicy") == SIDECAR


def node_of(pod: Pod) -> str:
    """Return the node that the pod is bound to; empty if none yet."""
    return str((pod.get("spec") or {}).get("nodeName") or "")


def is_live(pod: Pod) -> bool:
    """Return True unless the pod has ended."""
    return (pod.get("status") or {}).get("phase") not in ENDED


def resources(container: Container, kind: str) -> Mapping[str, Any]:
    """Return the container's `limits` or `requests`."""
    return (container.get("resources") or {}).get(kind) or {}


def amount(container: Container, resource: str) -> int | None:
    """Return the container's limit of the resource, else its request, or None. Raises Unreadable."""
    for kind in ("limits", "requests"):
        said = resources(container, kind).get(resource)
        if said is not None:
            return whole(said, f"container {container.get('name')}, {resource}")
    return None


def whole(said: Any, where: str) -> int:
    """Return a Kubernetes quantity as a whole number, rounded up as Kubernetes does. Raises Unreadable."""
    try:
        number = quantities.value(str(said))
    except quantities.NotAQuantity:
        raise Unreadable(f"{where}: {said!r} is not a quantity: give a whole number.") from None
    if not 0 <= number <= MOST:
        raise Unreadable(f"{where}: {said!r} is out of range: give a whole number from 0 to {MOST}.")
    return number


def whole_text(said: str, where: str, *, most: int = MOST) -> int:
    """Return the number written in digits only. Raises Unreadable."""
    if not (said.isascii() and said.isdigit() and len(said) <= LONGEST) or int(said) > most:
        raise Unreadable(f"{where}: {said[:LONGEST]!r} is not a whole number from 0 to {most}.")
    return int(said)


def environment(container: Container) -> Mapping[str, str]:
    """Return the container's variables that have a literal value."""
    return {str(entry.get("name")): str(entry["value"]) for entry in container.get("env") or [] if "value" in entry}
