"""CRIU's images of a claim's programs: whose they are, and which files belong to them.

Images say which files CRIU opens, which memory it fills and as whom the processes run. They come from another machine,
so nothing here trusts them: CRIU restores as the user of the programs, and images of another user are refused before.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

# CRIU's own files and the usage page; no others are taken.
NAME = re.compile(r"[a-z][a-z0-9_-]{0,60}\.img")
USAGE = "usage-page.img"
MOST_FILES = 10_000
# Of a core image: the task's threads are small.
MOST_CORE_BYTES = 1 << 20
# Field numbers of CRIU's protobuf messages: core_entry.thread_core, thread_core_entry.creds, and of creds_entry the
# eight numbers, the four capability sets of which a user's programs have none but the bounding one, and the groups.
THREAD_CORE, CREDS = 5, 10
UIDS, GIDS, CAPABILITIES, GROUPS = (1, 3, 5, 7), (2, 4, 6, 8), (9, 10, 11, 19), 14


class Refused(Exception):
    """Images that are not restored; the message says why."""


class User(NamedTuple):
    """The user and groups of programs."""

    uid: int
    gid: int
    groups: tuple[int, ...]


class Meta(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The sending agent's description of the programs."""

    claim_uid: str
    # The pid of the first process, the same there and here.
    root: int
    uid: int
    gid: int
    # CLOCK_MONOTONIC and CLOCK_BOOTTIME of the programs, and CLOCK_MONOTONIC of their machine, when they were dumped.
    monotonic_ns: int
    boottime_ns: int
    machine_ns: int
    # By slot of the limits page: the GPU, by NVML's name, and the bytes that were saved from it.
    gpus: dict[int, str]
    saved: dict[int, int]
    # The number of changes of the limits page that they have seen.
    limits_gen: int
    # By pid in their namespace: the GPUs that each process's driver saw.
    seen: dict[int, list[str]]


def find_user(directory: Path) -> User:
    """Return as whom all of the images' threads run. Raises Refused, also for a thread with capabilities."""
    users = {user for path in sorted(directory.glob("core-*.img")) for user in _read_core(path)}
    if len(users) != 1:
        raise Refused(f"The images have {len(users)} different users' processes, and one is needed.")
    return users.pop()


def _read_core(path: Path) -> Iterator[User]:
    content = path.read_bytes()
    if len(content) > MOST_CORE_BYTES:
        raise Refused(f"{path.name} is too large.")
    try:
        # Two magic numbers, then entries, each with its size.
        at = 8
        while at < len(content):
            size = int.from_bytes(content[at : at + 4], "little")
            entry = content[at + 4 : at + 4 + size]
            threads = [value for number, value in _fields(entry) if number == THREAD_CORE]
            creds = [value for one in threads for number, value in _fields(_bytes(one)) if number == CREDS]
            if not creds:
                raise Refused(f"{path.name} does not say as whom it runs.")
            # A repeated field's last value counts for some readers, and its first for others.
            for one in creds:
                yield _read_user(_bytes(one), path.name)
            at += 4 + size
    except (IndexError, ValueError) as error:
        raise Refused(f"{path.name} cannot be read.") from error


def _read_user(creds: bytes, name: str) -> User:
    found: dict[int, list[int]] = {}
    for number, value in _fields(creds):
        values = [value] if isinstance(value, int) else list(_packed(value))
        found.setdefault(number, []).extend(values)
    uids = {value for number in UIDS for value in found.get(number, [-1])}
    gids = {value for number in GIDS for value in found.get(number, [-1])}
    if len(uids) != 1 or len(gids) != 1:
        raise Refused(f"{name}: its real, effective and saved users differ.")
    if uids != {0} and any(value for number in CAPABILITIES for value in found.get(number, [])):
        raise Refused(f"{name}: it has capabilities of root.")
    return User(uids.pop(), gids.pop(), tuple(sorted(set(found.get(GROUPS, [])))))


def _bytes(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise ValueError  # noqa: TRY004 - it is said of an image, not of an argument
    return value


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        number, kind = key >> 3, key & 7
        if kind == 0:
            value, at = _varint(message, at)
            yield number, value
        elif kind == 2:
            size, at = _varint(message, at)
            if at + size > len(message):
                raise ValueError
            yield number, message[at : at + size]
            at += size
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
            yield number, int.from_bytes(message[at : at + size], "little")
            at += size
        else:
            raise ValueError


def _packed(value: bytes) -> Iterator[int]:
    at = 0
    while at < len(value):
        number, at = _varint(value, at)
        yield number


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if not byte & 0x80:
            return value, at
        if shift > 63:
            raise ValueError
