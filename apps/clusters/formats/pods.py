"""Reading pods as the API server writes them: plain dictionaries, of which any part may be missing."""

from collections.abc import Mapping
from typing import Any

from apps.clusters.core import quantities
from apps.clusters.formats.asks import Unreadable

Pod = Mapping[str, Any]
Container = Mapping[str, Any]

# Of a pod that was made for a claim: whose it is.
CLAIM = "gpucloud.io/claim"
ENDED = frozenset({"Succeeded", "Failed"})
# Above this nothing is a number of GPUs, percents or MiB; and no database column overflows.
MOST = 2**31 - 1
LONGEST = 32


def name_of(pod: Pod) -> str:
    """`namespace/name`, for people."""
    meta = pod.get("metadata") or {}
    return f"{meta.get('namespace') or 'default'}/{meta.get('name') or meta.get('generateName') or '?'}"


def annotations(pod: Pod) -> Mapping[str, str]:
    """Its annotations; none is an empty mapping."""
    return (pod.get("metadata") or {}).get("annotations") or {}


def labels(pod: Pod) -> Mapping[str, str]:
    """Its labels."""
    return (pod.get("metadata") or {}).get("labels") or {}


def containers(pod: Pod) -> list[Container]:
    """Those of `spec.containers`, in order."""
    return list((pod.get("spec") or {}).get("containers") or [])


def init_containers(pod: Pod) -> list[Container]:
    """Those that run before."""
    return list((pod.get("spec") or {}).get("initContainers") or [])


def node_of(pod: Pod) -> str:
    """The node that it is bound to; empty: none yet."""
    return str((pod.get("spec") or {}).get("nodeName") or "")


def is_live(pod: Pod) -> bool:
    """Whether it holds or may come to hold something."""
    return (pod.get("status") or {}).get("phase") not in ENDED


def resources(container: Container, kind: str) -> Mapping[str, Any]:
    """Its `limits` or `requests`."""
    return (container.get("resources") or {}).get(kind) or {}


def amount(container: Container, resource: str) -> int | None:
    """What its limits say of the resource, else its requests; None: nothing. Raises Unreadable."""
    for kind in ("limits", "requests"):
        said = resources(container, kind).get(resource)
        if said is not None:
            return whole(said, f"container {container.get('name')}, {resource}")
    return None


def whole(said: Any, where: str) -> int:
    """A quantity of Kubernetes, rounded up as its own `Value()` does. Raises Unreadable."""
    try:
        number = quantities.value(str(said))
    except quantities.NotAQuantity:
        raise Unreadable(f"{where}: {said!r} is not a quantity: give a whole number.") from None
    if not 0 <= number <= MOST:
        raise Unreadable(f"{where}: {said!r} is out of range: give a whole number from 0 to {MOST}.")
    return number


def whole_text(said: str, where: str, *, most: int = MOST) -> int:
    """Digits and nothing else. Raises Unreadable."""
    if not (said.isascii() and said.isdigit() and len(said) <= LONGEST) or int(said) > most:
        raise Unreadable(f"{where}: {said[:LONGEST]!r} is not a whole number from 0 to {most}.")
    return int(said)


def environment(container: Container) -> Mapping[str, str]:
    """Its variables that have a value written out."""
    return {str(entry.get("name")): str(entry["value"]) for entry in container.get("env") or [] if "value" in entry}
