"""Elastic groups in the server's frames: who is in, in the order of ranks."""

from typing import Annotated, Final

import msgspec
from msgspec import Meta

MAX_GROUPS, MAX_MEMBERS = 64, 256

_Uid = Annotated[str, Meta(pattern=r"^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")]
_Name = Annotated[str, Meta(max_length=63)]
_Host = Annotated[str, Meta(max_length=64)]  # Linux: HOST_NAME_MAX
_Seconds = Annotated[float, Meta(ge=0, le=1e11)]
_Count = Annotated[int, Meta(ge=0, le=2**31 - 1)]


class GroupMember(msgspec.Struct, frozen=True, kw_only=True):
    """A claim whose programs may run now."""

    claim: _Uid
    node: _Name
    # The machine's own name.
    host: _Host
    gpu_count: _Count
    joined_at: _Seconds | None
    # It is released then; null: it stays.
    leaves_at: _Seconds | None


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """An elastic group of which claims are on the node."""

    uid: _Uid
    name: _Name
    least: _Count
    most: _Count
    # Raised by every change of the members.
    generation: _Count
    updated_at: _Seconds
    members: Annotated[list[GroupMember], Meta(max_length=MAX_MEMBERS)]
    # The group's claims on this node, also those that are not yet, or no longer, members.
    claims: Annotated[list[_Uid], Meta(max_length=MAX_MEMBERS)]


# The longest values: the character whose JSON is longest.
_UID, _WORD, _MOST = "0" * 8 + "-0000" * 3 + "-" + "0" * 12, "\1" * 63, 2**31 - 1
LONGEST_MEMBER = GroupMember(
    claim=_UID, node=_WORD, host=_WORD + "\1", gpu_count=_MOST, joined_at=1e11 / 3, leaves_at=1e11 / 3
)
LONGEST = Group(
    uid=_UID,
    name=_WORD,
    least=_MOST,
    most=_MOST,
    generation=_MOST,
    updated_at=1e11 / 3,
    members=[LONGEST_MEMBER] * MAX_MEMBERS,
    claims=[_UID] * MAX_MEMBERS,
)
# The bound of the groups of a frame.
MAX_BYTES: Final = MAX_GROUPS * (len(msgspec.json.encode(LONGEST)) + 1)
