"""Whose every process of the machine is, as far as only a look at all of them together tells.

A claim's are its known members, what carries the claim's directory in its environment and is of a user whose programs
may be the claim's, what shares a container with one of these, and what they started. One that was started under another
claim is that claim's.
"""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from agent.host import processes
from agent.host.processes import Process


class Seen(NamedTuple):
    """One living process."""

    process: Process
    parent: int
    container: str | None
    # The claim's directory in its environment; None without one, or where it may not be read.
    directory: str | None


def take() -> list[Seen]:
    """Every living process that /proc shows; one walk."""
    found = []
    for entry in Path("/proc").iterdir():
        process = processes.find(int(entry.name)) if entry.name.isdigit() else None
        parent = processes.parent_pid(process) if process is not None else None
        if process is not None and parent is not None:
            directory = processes.variable(process, "GPUCLOUD_CLAIM_DIR")
            found.append(Seen(process, parent, processes.container(process), directory))
    return found


def divide(
    seen: Iterable[Seen],
    members: Mapping[str, Iterable[Process]],
    directories: Mapping[str, str],
    *,
    may_hold: Callable[[str, Process], bool],
    me: int,
) -> dict[str, set[Process]]:
    """The processes of each claim. `members`: those known, by claim; `directories`: the claim of each directory.

    `may_hold`: whether a claim may be the process's that says so itself. Neither `me` nor what started it is anybody's
    but by being a known member.
    """
    by_pid = {one.process.pid: one for one in seen}
    known = {process: claim for claim, them in members.items() for process in them}
    claims: dict[int, str] = {}
    for pid, one in by_pid.items():
        said = directories.get(one.directory or "")
        claim = known.get(one.process) or (said if said is not None and may_hold(said, one.process) else None)
        if claim is not None:
            claims[pid] = claim
    spared = _with_ancestors(me, by_pid)
    count = -1
    # What is in a container may have started what is in another one.
    while count != len(claims):
        count = len(claims)
        _share_containers(by_pid, claims, spared)
        _descend(by_pid, claims, spared)
    divided: dict[str, set[Process]] = {}
    for pid, claim in claims.items():
        divided.setdefault(claim, set()).add(by_pid[pid].process)
    return divided


def _with_ancestors(pid: int, by_pid: Mapping[int, Seen]) -> set[int]:
    found: set[int] = set()
    while pid not in found:
        found.add(pid)
        pid = by_pid[pid].parent if pid in by_pid else 0
    return found


def _share_containers(by_pid: Mapping[int, Seen], claims: dict[int, str], spared: set[int]) -> None:
    holders: dict[str, set[str]] = {}
    for pid, claim in claims.items():
        container = by_pid[pid].container
        if container is not None:
            holders.setdefault(container, set()).add(claim)
    # Where the agent is in it too, it is no claim's container; nor where several claims are.
    mine = {by_pid[pid].container for pid in spared if pid in by_pid}
    for pid, one in by_pid.items():
        found = holders.get(one.container or "", set())
        if pid not in claims and pid not in spared and len(found) == 1 and one.container not in mine:
            claims[pid] = next(iter(found))


def _descend(by_pid: Mapping[int, Seen], claims: dict[int, str], spared: set[int]) -> None:
    children: dict[int, list[int]] = {}
    for pid, one in by_pid.items():
        children.setdefault(one.parent, []).append(pid)
    waiting = list(claims)
    while waiting:
        pid = waiting.pop()
        for child in children.get(pid, ()):
            if child not in claims and child not in spared:
                claims[child] = claims[pid]
                waiting.append(child)
