"""The arbiter's allotment on a claim's turns page. The agent only reads it."""

import ctypes
import os
import time
from ctypes import c_void_p
from pathlib import Path

from agent.claims.abi import PagesLibrary

# An arbiter writes each page ten times a second. One that has been silent for longer is dead.
STALE_NS = 1_000_000_000

# In the place of a turn's end: no turns are given, each claim follows its own limit (VCUDA_TURN_FREE).
FREE = 2**64 - 1


def allotted_percent(library: PagesLibrary, directory: Path, index: int, *, alone_percent: int) -> float | None:
    """Return the percent of the GPU in this slot that the claim is allotted; None if no arbiter says so.

    While no turns are given, return what it may use alone: the share on the page may be of an older limit then.
    """
    page = c_void_p()
    if library.calls.vcuda_turns_open(os.fsencode(directory / "turns"), 0, ctypes.byref(page)) < 0:
        return None
    text = ctypes.string_at(page, library.turns_bytes)
    library.calls.vcuda_turns_unmap(page)
    heartbeat_at, turn_at = library.turns_heartbeat_at, library.turns_at + index * library.turn_bytes
    heartbeat_ns = int.from_bytes(text[heartbeat_at : heartbeat_at + 8], "little")
    if time.clock_gettime_ns(time.CLOCK_MONOTONIC) - heartbeat_ns > STALE_NS:
        return None
    share_at, ends_at = turn_at + library.turn_share_at, turn_at + library.turn_ends_at
    if int.from_bytes(text[ends_at : ends_at + 8], "little") == FREE:
        return float(alone_percent)
    return int.from_bytes(text[share_at : share_at + 4], "little") / 100
