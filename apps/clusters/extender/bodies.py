"""Request and response bodies of kube-scheduler: JSON with Go's field names.

Go accepts keys in any case, and so does this module: it decodes a body with the usual case at once, and looks for other
cases only if a key is missing. Nodes are 1.5 to 10 KB each and come by the thousand, so only a name and two amounts of
each are decoded, and the response is cut out of the request's bytes.
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
    """The body is not a request of kube-scheduler."""


class _NodeList(Struct):
    items: list[Raw] | None = None


class _Body(Struct, rename="pascal"):
    pod: Raw | UnsetType = UNSET
    nodes: _NodeList | UnsetType | None = UNSET
    node_names: list[str] | None = None


# The decoded fields of a node; everything else, including labels and other amounts, is skipped while decoding.
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

# The keys that are read, as Go's types write them; nested dictionaries are read within.
_METADATA: dict[str, Any] = {"name": 0, "namespace": 0, "uid": 0, "annotations": 0, "labels": 0, "resourceVersion": 0}
_CONTAINER: dict[str, Any] = {"name": 0, "restartPolicy": 0, "resources": {"limits": 0}}
POD: dict[str, Any] = {
    "metadata": _METADATA,
    "spec": {"nodeName": 0, "priority": 0, "containers": _CONTAINER, "initContainers": _CONTAINER},
    "status": {"phase": 0},
}
_NODE = {"metadata": {"name": 0}, "status": {"capacity": 0}}
_ARGS = {"Pod": POD, "Nodes": {"metadata": 0, "items": _NODE}, "NodeNames": 0}
_ITEM = msgspec.json.Decoder(_Node)
_BODY = msgspec.json.Decoder(_Body)


class Args:
    """A pod and its candidate nodes, whole or by name."""

    def __init__(
        self, pod: Pod, raw_nodes: list[Raw] | None, nodes: list[Sized] | None, names: list[str] | None
    ) -> None:
        self.pod, self.raw_nodes, self.nodes, self.node_names = pod, raw_nodes, nodes, names


def args(body: bytes) -> Args:
    """Parse the arguments of a filter or prioritize request. Raises NotUnderstood."""
    try:
        decoded = _BODY.decode(body)
        if decoded.pod is UNSET or (decoded.nodes is UNSET and decoded.node_names is None):
            decoded = _decode_folded(body)
        if decoded.pod is UNSET:
            raise NotUnderstood("there is no Pod in the request")
        # Always folded in full: a pod is small, and a missed key would be a pod without GPUs.
        pod = msgspec.convert(fold(json.loads(bytes(decoded.pod)), POD), Pod)
        raw = decoded.nodes.items or [] if isinstance(decoded.nodes, _NodeList) else None
        return Args(pod, raw, None if raw is None else _node_sizes(raw), decoded.node_names)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise NotUnderstood(str(error)) from error


def _node_sizes(raw: list[Raw]) -> list[Sized]:
    """Return name, core and memory of each node. Raises NotAQuantity and msgspec's errors."""
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
    """Return the value with its known keys in their usual case, at every known level; lists item by item."""
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
    """Return an ExtenderFilterResult as Go writes it."""
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
