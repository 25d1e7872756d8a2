"""Decoded fields of Kubernetes' objects; the rest is skipped while decoding.

The client library's classes build and check every field: five times the time, and most fields are not used.
"""

from typing import Any

import msgspec
from msgspec import Struct, field

Amounts = dict[str, str | int | float]


class Metadata(Struct, rename="camel", gc=False):
    """Metadata of any object."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    annotations: dict[str, str] | None = None
    labels: dict[str, str] | None = None


class Resources(Struct, gc=False):
    """Resources of a container."""

    limits: Amounts | None = None


class Container(Struct, rename="camel", gc=False):
    """A container of a pod. `restart_policy`: of an init container; `Always` makes it a sidecar."""

    name: str = ""
    restart_policy: str | None = None
    resources: Resources = field(default_factory=Resources)


class PodSpec(Struct, rename="camel", gc=False):
    """Desired state of a pod."""

    node_name: str = ""
    priority: int | None = None
    containers: list[Container] | None = None
    init_containers: list[Container] | None = None


class PodStatus(Struct, gc=False):
    """Observed state of a pod."""

    phase: str = ""


class Pod(Struct, gc=False):
    """A pod."""

    metadata: Metadata = field(default_factory=Metadata)
    spec: PodSpec = field(default_factory=PodSpec)
    status: PodStatus = field(default_factory=PodStatus)


class NodeStatus(Struct, gc=False):
    """Capacity of a node."""

    capacity: Amounts | None = None


class Node(Struct, gc=False):
    """A node."""

    metadata: Metadata = field(default_factory=Metadata)
    status: NodeStatus = field(default_factory=NodeStatus)


class Namespace(Struct, gc=False):
    """A namespace."""

    metadata: Metadata = field(default_factory=Metadata)


class QuotaAmounts(Struct, gc=False):
    """Amounts of a ResourceQuota."""

    hard: Amounts | None = None
    used: Amounts | None = None


class Quota(Struct, gc=False):
    """A ResourceQuota."""

    metadata: Metadata = field(default_factory=Metadata)
    spec: QuotaAmounts = field(default_factory=QuotaAmounts)
    status: QuotaAmounts = field(default_factory=QuotaAmounts)


class ListMetadata(Struct, rename={"resource_version": "resourceVersion", "next": "continue"}):
    """Metadata of a list."""

    resource_version: str = ""
    next: str | None = None


class Page(Struct):
    """One page of a list, its items undecoded."""

    metadata: ListMetadata
    items: list[msgspec.Raw] | None = None


class Event(Struct):
    """One line of a watch."""

    type: str
    object: msgspec.Raw


class StatusDetails(Struct, rename="camel"):
    """Further facts of a refused request."""

    retry_after_seconds: float = 0.0


class Status(Struct):
    """Reason of a refused request."""

    code: int = 0
    reason: str = ""
    message: str = ""
    details: StatusDetails = field(default_factory=StatusDetails)


Object = Pod | Node | Namespace | Quota
# An undecoded object, which is sent back whole.
Raw = dict[str, Any]
