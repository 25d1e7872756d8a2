"""The arbiter's words on a claim's turns page. The agent only reads it."""

import ctypes
import os
import time
from ctypes import c_void_p
from pathlib import Path
from typing import NamedTuple

from agent.claims.abi import PagesLibrary

# An arbiter writes each page ten times a second. One that has been silent for longer is dead.
STALE_NS = 1_000_000_000

# In the place of a turn's end: no turns are given, each claim follows its own limit (VCUDA_TURN_FREE).
FREE = 2**64 - 1


def allotted_percent(library: PagesLibrary, directory: Path, index: int, *, alone_percent: int) -> float | None:
    """Return the percent of the GPU in this slot that the claim is allotted; None if no arbiter says so.

    While no turns are given, return what it may use alone: the share on the page may be of an older limit then.
    """
    text = _read(library, directory)
    if text is None:
        return None
    turn_at = library.turns_at + index * library.turn_bytes
    share_at, ends_at = turn_at + library.turn_share_at, turn_at + library.turn_ends_at
    if int.from_bytes(text[ends_at : ends_at + 8], "little") == FREE:
        return float(alone_percent)
    return int.from_bytes(text[share_at : share_at + 4], "little") / 100


class MemoryTurn(NamedTuple):
    """The arbiter's words about lent memory of one GPU."""

    # An order to give memory back that the claim has not followed in time; 0: none.
    overdue: int = 0
    # Other claims of the GPU that may borrow memory.
    borrowers: int = 0


def read_memory_turn(library: PagesLibrary, directory: Path, index: int) -> MemoryTurn:
    """Return what the arbiter says about lent memory of the GPU in this slot."""
    text = _read(library, directory)
    if text is None:
        return MemoryTurn()
    at = library.memory_turns_at + index * library.memory_turn["size"]
    fields = library.memory_turn["fields"]
    words = (text[at + offset : at + offset + size] for offset, size in (fields["overdue"], fields["borrowers"]))
    return MemoryTurn(*(int.from_bytes(word, "little") for word in words))


def _read(library: PagesLibrary, directory: Path) -> bytes | None:
    """Return the page; None if no living arbiter writes it."""
    page = c_void_p()
    if library.calls.vcuda_turns_open(os.fsencode(directory / "turns"), 0, ctypes.byref(page)) < 0:
        return None
    text = ctypes.string_at(page, library.turns_bytes)
    library.calls.vcuda_turns_unmap(page)
    heartbeat_ns = int.from_bytes(text[library.turns_heartbeat_at : library.turns_heartbeat_at + 8], "little")
    return text if time.clock_gettime_ns(time.CLOCK_MONOTONIC) - heartbeat_ns <= STALE_NS else None
