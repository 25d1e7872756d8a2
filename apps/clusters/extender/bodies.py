"""What kube-scheduler sends and is answered: JSON whose keys are Go's field names.

Go reads keys in any case, and so do we: as they are usually written a body is decoded at once, and only what is missed
then is looked for under other cases. Nodes are 1.5 to 10 KB each and come by the thousand; of each only a name and two
amounts are read, and what goes back is cut out of what came.
"""

import json
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from apps.clusters.kube.objects import Node, Pod


class NotUnderstood(ValueError):
    """The body is not what kube-scheduler sends."""


class _NodeList(Struct):
    items: list[Raw] | None = None


class _Body(Struct, rename="pascal"):
    pod: Raw | UnsetType = UNSET
    nodes: _NodeList | UnsetType | None = UNSET
    node_names: list[str] | None = None


# The keys that are read, as Go's types write them. What stands in braces is read within.
_METADATA: dict[str, Any] = {"name": 0, "namespace": 0, "uid": 0, "annotations": 0, "labels": 0, "resourceVersion": 0}
_CONTAINER: dict[str, Any] = {"name": 0, "resources": {"limits": 0}}
_POD = {
    "metadata": _METADATA,
    "spec": {"nodeName": 0, "priority": 0, "containers": _CONTAINER},
    "status": {"phase": 0},
}
_NODE = {"metadata": _METADATA, "status": {"capacity": 0}}
_ARGS = {"Pod": _POD, "Nodes": {"metadata": 0, "items": _NODE}, "NodeNames": 0}
_ITEM = msgspec.json.Decoder(Node)


class Args:
    """A pod, and the nodes that it might go to: whole, or by name."""

    def __init__(
        self, pod: Pod, raw_nodes: list[Raw] | None, nodes: list[Node] | None, names: list[str] | None
    ) -> None:
        self.pod, self.raw_nodes, self.nodes, self.node_names = pod, raw_nodes, nodes, names


def args(body: bytes) -> Args:
    """Raises NotUnderstood."""
    try:
        decoded = msgspec.json.decode(body, type=_Body)
        if decoded.pod is UNSET or (decoded.nodes is UNSET and decoded.node_names is None):
            decoded = _folded(body)
        if decoded.pod is UNSET:
            raise NotUnderstood("there is no Pod in the request")
        # Always in full: a pod is small, and a key missed in it is a pod without GPUs.
        pod = msgspec.convert(fold(json.loads(bytes(decoded.pod)), _POD), Pod)
        nodes, raw = None, decoded.nodes.items or [] if isinstance(decoded.nodes, _NodeList) else None
        if raw is not None:
            nodes = [_ITEM.decode(item) for item in raw]
            if any(not node.metadata.name or node.status.capacity is None for node in nodes):
                nodes = [msgspec.convert(fold(json.loads(bytes(item)), _NODE), Node) for item in raw]
        return Args(pod, raw, nodes, decoded.node_names)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise NotUnderstood(str(error)) from error


def _folded(body: bytes) -> _Body:
    return msgspec.convert(
        {
            name: {"items": [Raw(json.dumps(item).encode()) for item in value.get("items") or ()]}
            if name == "Nodes" and isinstance(value, dict)
            else Raw(json.dumps(value).encode())
            if name == "Pod" and value is not None
            else value
            for name, value in fold(json.loads(body), _ARGS).items()
            if name in _ARGS and not (name == "Pod" and value is None)
        },
        _Body,
    )


def fold(value: Any, known: Any) -> Any:
    """The value with its keys as they are known, at every level that is known; lists item by item."""
    if isinstance(value, list):
        return [fold(item, known) for item in value]
    if not isinstance(value, dict) or not isinstance(known, dict):
        return value
    names = {name.lower(): name for name in known}
    found: dict[str, Any] = {}
    for key, item in value.items():
        name = key if key in known else names.get(str(key).lower(), key)
        found[str(name)] = fold(item, known.get(name))
    return found


def filtered(
    raw_nodes: Sequence[Raw] | None,
    names: Sequence[str] | None,
    failed: dict[str, str] | None,
    *,
    error: str = "",
) -> bytes:
    """An ExtenderFilterResult, as Go writes one."""
    nodes = None if raw_nodes is None else {"metadata": {}, "items": list(raw_nodes)}
    return msgspec.json.encode(
        {
            "Nodes": nodes,
            "NodeNames": names,
            "FailedNodes": failed,
            "FailedAndUnresolvableNodes": None,
            "Error": error,
        }
    )
