"""Borrowed memory in the wire format."""

from agent.wire_frames import Bytes, Record


class Borrowing(Record, frozen=True, kw_only=True):
    """Memory of an assignment beyond what is promised to it, which its programs give back when others need theirs."""

    # Promised; the rest of `memory_bytes` is borrowed. What cannot leave the GPU (contexts, pools) must fit in it.
    memory_request_bytes: Bytes
    # The most host memory that its programs may pin for what is borrowed. Without room there, nothing is.
    host_memory_bytes: Bytes
