"""The pod uid of a set of devices, from the kubelet's own checkpoint of its allocations.

PodResources names pods, and a StatefulSet's next pod has the name of the one before. The checkpoint (the file
`kubelet_internal_checkpoint` beside the kubelet's socket, kept in this form since 1.20) has their uids, and is written
before a container is created. It is the kubelet's private file: if it is missing, or is not understood, the uid is
unknown, and names alone count.
"""

from collections.abc import Collection
from pathlib import Path
from typing import Any

import msgspec

NAME = "kubelet_internal_checkpoint"
# The file of a machine with 16 GPUs, all in parts, has some hundred kilobytes.
MOST_BYTES = 64 << 20


class _Entry(msgspec.Struct, rename={"uid": "PodUID", "resource": "ResourceName", "ids": "DeviceIDs"}):
    uid: str
    resource: str
    # By memory node; before 1.20 a list.
    ids: Any = None


class _Data(msgspec.Struct):
    entries: list[_Entry] | None = msgspec.field(name="PodDeviceEntries", default=None)


class _Checkpoint(msgspec.Struct):
    data: _Data = msgspec.field(name="Data")


def pod_uid(directory: Path, resource: str, ids: Collection[str]) -> str:
    """Return the uid of the one pod that has exactly these devices; empty if it is unknown."""
    path, wanted = directory / NAME, set(ids)
    try:
        if path.stat().st_size > MOST_BYTES:
            return ""
        noted = msgspec.json.decode(path.read_bytes(), type=_Checkpoint).data.entries or []
    except (OSError, msgspec.MsgspecError):
        return ""
    found = {entry.uid for entry in noted if entry.resource == resource and _all(entry.ids) == wanted}
    return found.pop() if len(found) == 1 else ""


def _all(ids: Any) -> set[str]:
    parts = ids.values() if isinstance(ids, dict) else [ids]
    return {one for part in parts if isinstance(part, list) for one in part if isinstance(one, str)}
