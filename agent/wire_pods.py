"""The container of a pod, or the device of a ResourceClaim, that an assignment is for."""

from typing import Annotated

import msgspec
from msgspec import Meta

ObjectName = Annotated[str, Meta(min_length=1, max_length=253)]  # in Kubernetes: a DNS subdomain
LabelName = Annotated[str, Meta(min_length=1, max_length=63)]  # a DNS label
_Uid = Annotated[str, Meta(pattern=r"^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")]
_Word = Annotated[str, Meta(max_length=200)]


class Pod(msgspec.Struct, frozen=True, kw_only=True):
    """The container of a cluster that a claim is for, by the names that the kubelet uses."""

    namespace: LabelName
    name: ObjectName
    container: LabelName


class ResourceClaim(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The ResourceClaim of a cluster that a claim is for, and the device of it that this assignment is."""

    namespace: LabelName
    name: ObjectName
    uid: _Uid
    # The device's pool, its name in the node's ResourceSlices, and the request that it was allocated for.
    pool: ObjectName
    device: LabelName
    request: _Word
    # The share of a device that several claims may have. Empty: the claim has the device alone.
    share_id: _Word = ""
