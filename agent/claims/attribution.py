"""The attribution of processes to claims.

A claim's processes are its known members; processes with the claim's directory in their environment, if their user may
write its usage page; processes that share a container with one of these; and their descendants, unless one was started
under another claim: that claim's. `attribute` does it for the whole process table at once, `GpuAttribution` for single
processes on a GPU.
"""

import os
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from agent.claims.claim import ClaimRuntime
from agent.host import processes
from agent.host.processes import Process

# No program has a longer chain of parents.
MOST_PARENTS = 64


class ProcessInfo(NamedTuple):
    """One living process."""

    process: Process
    parent: int
    container: str | None
    # The claim's directory in its environment; None if there is none or it may not be read.
    directory: str | None


def read_processes() -> list[ProcessInfo]:
    """Return every living process that /proc shows; one walk."""
    found = []
    for name in os.listdir("/proc"):  # noqa: PTH208 - half the time of a path for each
        there = processes.find_with_parent(int(name)) if name.isdigit() else None
        if there is not None:
            process, parent = there
            directory = processes.variable(process, "GPUCLOUD_CLAIM_DIR")
            found.append(ProcessInfo(process, parent, processes.container(process), directory))
    return found


def attribute(
    seen: Iterable[ProcessInfo],
    members: Mapping[str, Iterable[Process]],
    directories: Mapping[str, str],
    *,
    accepts: Callable[[str, Process], bool],
    me: int,
) -> dict[str, set[Process]]:
    """Return the processes of each claim. `members`: the known ones, by claim; `directories`: the claim of each.

    `accepts`: returns whether a claim accepts a process that names it in its environment. `me` and its ancestors belong
    to a claim only as known members.
    """
    # 1. Attribute the known members, and processes that name a claim's directory and may do so.
    by_pid = {one.process.pid: one for one in seen}
    known = {process: claim for claim, them in members.items() for process in them}
    claims: dict[int, str] = {}
    for pid, one in by_pid.items():
        named = directories.get(one.directory or "")
        claim = known.get(one.process) or (named if named is not None and accepts(named, one.process) else None)
        if claim is not None:
            claims[pid] = claim
    spared = _with_ancestors(me, by_pid)
    # 2. Add processes in their containers, and all descendants, until none is left.
    count = -1
    # A program in one container may have started a program in another.
    while count != len(claims):
        count = len(claims)
        _add_container_processes(by_pid, claims, spared)
        _add_descendants(by_pid, claims, spared)
    # 3. Group them by claim.
    divided: dict[str, set[Process]] = {}
    for pid, claim in claims.items():
        divided.setdefault(claim, set()).add(by_pid[pid].process)
    return divided


def _with_ancestors(pid: int, by_pid: Mapping[int, ProcessInfo]) -> set[int]:
    found: set[int] = set()
    while pid not in found:
        found.add(pid)
        pid = by_pid[pid].parent if pid in by_pid else 0
    return found


def _add_container_processes(by_pid: Mapping[int, ProcessInfo], claims: dict[int, str], spared: set[int]) -> None:
    holders: dict[str, set[str]] = {}
    for pid, claim in claims.items():
        container = by_pid[pid].container
        if container is not None:
            holders.setdefault(container, set()).add(claim)
    # The agent's own container belongs to no claim; neither does one with several claims.
    mine = {by_pid[pid].container for pid in spared if pid in by_pid}
    for pid, one in by_pid.items():
        found = holders.get(one.container or "", set())
        if pid not in claims and pid not in spared and len(found) == 1 and one.container not in mine:
            claims[pid] = next(iter(found))


def _add_descendants(by_pid: Mapping[int, ProcessInfo], claims: dict[int, str], spared: set[int]) -> None:
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


class GpuAttribution:
    """The claim of each GPU process; an answer is valid for as long as the process lives."""

    def __init__(self) -> None:
        self._claims: dict[Process, str] = {}
        # Of this audit: read on first use, since it reads /proc for every program of every claim.
        self._members: dict[Process, str] | None = None
        self._containers: dict[str | None, set[str]] | None = None

    def begin_audit(self, living: set[Process]) -> None:
        """Begin a new audit: forget all processes but `living`, and the claims' members."""
        self._members = self._containers = None
        self._claims = {process: claim for process, claim in self._claims.items() if process in living}

    def claim(self, process: Process, runtimes: Mapping[str, ClaimRuntime]) -> str | None:
        """Return the uid of the process's claim; None if it belongs to no claim of this node."""
        known = self._claims.get(process)
        if known in runtimes:
            return known
        members = self._living_members(runtimes)
        found = _by_descent(process, members) or _by_directory(process, runtimes) or self._by_container(process)
        if found is not None:
            self._claims[process] = found
        return found

    def is_member(self, process: Process, claim_uid: str, runtimes: Mapping[str, ClaimRuntime]) -> bool:
        """Return whether it is a known member of the claim: more than its own environment names the claim."""
        return self._living_members(runtimes).get(process) == claim_uid

    def _living_members(self, runtimes: Mapping[str, ClaimRuntime]) -> dict[Process, str]:
        if self._members is None:
            self._members = {member: uid for uid, one in runtimes.items() for member in one.members.living()}
        return self._members

    def _by_container(self, process: Process) -> str | None:
        container = processes.container(process)
        # The agent itself may run in a container, with programs of several claims beside it.
        if container is None or container == processes.container(processes.myself()):
            return None
        if self._containers is None:
            self._containers = {}
            for member, uid in (self._members or {}).items():
                self._containers.setdefault(processes.container(member), set()).add(uid)
        claims = self._containers.get(container, set())
        return next(iter(claims)) if len(claims) == 1 else None


def _by_descent(process: Process, members: Mapping[Process, str]) -> str | None:
    ancestor: Process | None = process
    for _ in range(MOST_PARENTS):
        if ancestor is None or ancestor in members:
            break
        ancestor = processes.parent(ancestor)
    return None if ancestor is None else members.get(ancestor)


def _by_directory(process: Process, runtimes: Mapping[str, ClaimRuntime]) -> str | None:
    directory = processes.variable(process, "GPUCLOUD_CLAIM_DIR")
    return next(
        (uid for uid, one in runtimes.items() if str(one.directory) == directory and one.accepts(process)), None
    )
