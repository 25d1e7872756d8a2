"""The programs of an elastic group's members on this node: started when a member joins, ended with it."""

import os
import signal
import subprocess
import threading
import time
from collections.abc import Collection, Sequence
from typing import Any

from gpucloud_cli import claiming, output
from gpucloud_cli.api import Api
from gpucloud_cli.child import NotHere, command_line
from gpucloud_cli.failures import Failure

LOOK_SECONDS = 2.0
# A program that failed is started again, by then at the earliest: elastic programs fail where a peer was lost.
AGAIN_SECONDS = 5.0
# As the agent gives programs whose claim is released.
END_SECONDS = 10.0
# A program may fail so long after a member has left: `torchrun` waits a minute for it, in each of its rounds.
LOST_SECONDS = 180.0


class GroupPrograms:
    """One COMMAND for each member of a group on this node, except those in `without`."""

    def __init__(self, api: Api, uid: str, command: Sequence[str], *, without: Collection[str] = ()) -> None:
        self._api, self._path, self._command = api, f"groups/{uid}/", command
        self._without = without
        self._started: dict[str, subprocess.Popen[bytes]] = {}
        # Members elsewhere, and those whose program has ended well: neither is started here again.
        self._left = set[str]()
        # The earliest time for another start, by the monotonic clock.
        self._again_at: dict[str, float] = {}
        self._members = set[str]()
        # When a member was last missed, by the monotonic clock.
        self._lost_at = float("-inf")
        self.ended = False

    def refresh(self) -> None:
        """Start the programs of new members and tell of those that have ended; a silent server is no news."""
        try:
            group = self._api.get(self._path).body
        except Failure:
            return
        members = {member["claim"] for member in group["members"]}
        if self._members - members:
            self._lost_at = time.monotonic()
        self._members = members
        for member in group["members"]:
            uid = member["claim"]
            known = uid in self._without or uid in self._started or uid in self._left
            if not known and self._again_at.get(uid, 0.0) <= time.monotonic():
                self._start(member)
        for uid, process in list(self._started.items()):
            if (code := process.poll()) is not None:
                output.say(f"the program of member {uid} has ended ({code})")
                del self._started[uid]
                if code == 0:
                    self._left.add(uid)
                self._again_at[uid] = time.monotonic() + AGAIN_SECONDS
        self.ended = group["state"] == "ended"

    def has_lost_a_member(self) -> bool:
        """Return True if a member has left lately: a program that fails now may be started again."""
        return not self.ended and time.monotonic() - self._lost_at < LOST_SECONDS

    def _start(self, member: dict[str, Any]) -> None:
        uid = member["claim"]
        try:
            line, environment = command_line(self._api.get(f"{claiming.path_of(uid)}env/").body, self._command)
        except NotHere:
            self._left.add(uid)
            output.say(f"member {uid} is on node {member['node']}: `gpucloud group exec` there runs its program")
            return
        except Failure:
            # It may have left meanwhile; else the next look tries again.
            return
        # Its own process group: this one's signals and terminal are the first program's.
        self._started[uid] = subprocess.Popen(line, env=environment, process_group=0, stdin=subprocess.DEVNULL)
        output.say(f"member {uid} has joined as rank {member['rank']}")

    def end(self) -> None:
        """End all programs: SIGTERM, and SIGKILL after the agent's own grace."""
        for process in self._started.values():
            _send(process, signal.SIGTERM)
        deadline = time.monotonic() + END_SECONDS
        for process in self._started.values():
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                _send(process, signal.SIGKILL)
                process.wait()
        self._started.clear()


class GroupThread(threading.Thread):
    """A thread that keeps the programs of the members beside the one in the foreground."""

    def __init__(self, programs: GroupPrograms) -> None:
        super().__init__(name="group", daemon=True)
        self.programs, self._over = programs, threading.Event()

    def run(self) -> None:
        """Look until `stop`."""
        while not self._over.wait(LOOK_SECONDS):
            self.programs.refresh()

    def stop(self) -> None:
        """End the thread, and the programs that it has started."""
        self._over.set()
        self.join()
        self.programs.end()


def _send(process: subprocess.Popen[bytes], number: int) -> None:
    if process.poll() is None:
        os.killpg(process.pid, number)
