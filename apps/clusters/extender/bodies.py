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

from apps.clusters.core import quantities
from apps.clusters.core.gpu_admission import CORE, MEMORY
from apps.clusters.kube.objects import Pod


class NotUnderstood(ValueError):
    """The body is not what kube-scheduler sends."""


class _NodeList(Struct):
    items: list[Raw] | None = None


class _Body(Struct, rename="pascal"):
    pod: Raw | UnsetType = UNSET
    nodes: _NodeList | UnsetType | None = UNSET
    node_names: list[str] | None = None


# Of a node so much and no more: the rest, labels and other amounts too, is passed over while decoding.
class _Amounts(Struct, rename={"core": CORE, "memory": MEMORY}, gc=False):
    core: str | float = 0
    memory: str | float = 0


class _NodeStatus(Struct, gc=False):
    capacity: _Amounts | None = None


class _NodeName(Struct, gc=False):
    name: str = ""


class _Node(Struct, gc=False):
    metadata: _NodeName = msgspec.field(default_factory=_NodeName)
    status: _NodeStatus = msgspec.field(default_factory=_NodeStatus)


# Name, core and units of memory.
Sized = tuple[str, int, int]

# The keys that are read, as Go's types write them. What stands in braces is read within.
_METADATA: dict[str, Any] = {"name": 0, "namespace": 0, "uid": 0, "annotations": 0, "labels": 0, "resourceVersion": 0}
_CONTAINER: dict[str, Any] = {"name": 0, "resources": {"limits": 0}}
POD: dict[str, Any] = {
    "metadata": _METADATA,
    "spec": {"nodeName": 0, "priority": 0, "containers": _CONTAINER},
    "status": {"phase": 0},
}
_NODE = {"metadata": {"name": 0}, "status": {"capacity": 0}}
_ARGS = {"Pod": POD, "Nodes": {"metadata": 0, "items": _NODE}, "NodeNames": 0}
_ITEM = msgspec.json.Decoder(_Node)
_BODY = msgspec.json.Decoder(_Body)


class Args:
    """A pod, and the nodes that it might go to: whole, or by name."""

    def __init__(
        self, pod: Pod, raw_nodes: list[Raw] | None, nodes: list[Sized] | None, names: list[str] | None
    ) -> None:
        self.pod, self.raw_nodes, self.nodes, self.node_names = pod, raw_nodes, nodes, names


def args(body: bytes) -> Args:
    """Raises NotUnderstood."""
    try:
        decoded = _BODY.decode(body)
        if decoded.pod is UNSET or (decoded.nodes is UNSET and decoded.node_names is None):
            decoded = _decode_folded(body)
        if decoded.pod is UNSET:
            raise NotUnderstood("there is no Pod in the request")
        # Always in full: a pod is small, and a key missed in it is a pod without GPUs.
        pod = msgspec.convert(fold(json.loads(bytes(decoded.pod)), POD), Pod)
        raw = decoded.nodes.items or [] if isinstance(decoded.nodes, _NodeList) else None
        return Args(pod, raw, None if raw is None else _node_sizes(raw), decoded.node_names)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise NotUnderstood(str(error)) from error


def _node_sizes(raw: list[Raw]) -> list[Sized]:
    """Raises NotAQuantity, and what msgspec raises."""
    nodes, value = [_ITEM.decode(item) for item in raw], quantities.value
    if any(not node.metadata.name or node.status.capacity is None for node in nodes):
        nodes = [msgspec.convert(fold(json.loads(bytes(item)), _NODE), _Node) for item in raw]
    return [
        (node.metadata.name, value(amounts.core), value(amounts.memory))
        for node in nodes
        for amounts in (node.status.capacity or _Amounts(),)
    ]


def _decode_folded(body: bytes) -> _Body:
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


def filter_result(
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
