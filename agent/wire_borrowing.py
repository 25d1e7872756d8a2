"""Borrowed memory in the wire format."""

from typing import Annotated

from msgspec import Meta

from agent.wire_frames import Bytes, MeasuredPercent, Record


class Borrowing(Record, frozen=True, kw_only=True):
    """Memory of an assignment beyond what is promised to it, which its programs give back when others need theirs."""

    # Promised; the rest of `memory_bytes` is borrowed. What cannot leave the GPU (contexts, pools) must fit in it.
    memory_request_bytes: Bytes
    # The most host memory that its programs may pin for what is borrowed. Without room there, nothing is.
    host_memory_bytes: Bytes


class BorrowedMemory(Record, frozen=True, kw_only=True, gc=False):
    """Borrowed memory of one assignment: where it is, and what its moves cost since the last sample."""

    # On the GPU beyond what is promised.
    borrowed_bytes: Bytes
    # In host memory, because others of the GPU use theirs. Not in `AssignmentUsage.memory_bytes`.
    out_bytes: Bytes
    # Moved between GPU and host memory, in both directions together.
    moved_bytes: Bytes
    moved_bytes_per_second: Annotated[float, Meta(ge=0, le=1e15)]
    # Time for which the programs stood still while memory moved.
    stood_ms: Annotated[float, Meta(ge=0, le=1e9)]
    stood_percent: MeasuredPercent
