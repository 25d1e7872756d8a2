"""Sockets in the kubelet's directories, served until somebody removes them, then made anew.

Changes are detected by checking once a second: a directory on another machine's disk, or one that is mounted later,
sends no notification.
"""

import asyncio
import contextlib
from pathlib import Path

import grpc
from grpc import aio

from agent.kubelet import calls
from agent.kubelet.calls import Unreachable
from agent.logs import log

LOOK_SECONDS = 1.0
# The time that calls under way may take when the agent ends.
GRACE_SECONDS = 0.5


class SocketServers:
    """Servers at sockets that are made and removed together. `problem_event` names a failure in the log."""

    def __init__(self, problem_event: str) -> None:
        self._problem_event = problem_event
        self._served: list[tuple[Path, aio.Server]] = []
        self._identities: list[tuple[int, int] | None] = []
        self._problem: str | None = None

    async def run(self) -> None:
        """Keep the sockets served until cancelled; a failure is logged once and tried again."""
        try:
            while True:
                try:
                    await self.serve_until_lost()
                    problem = None
                except (OSError, Unreachable) as error:
                    problem = str(error)
                if problem is not None and problem != self._problem:
                    log.warning(self._problem_event, reason=problem)
                self._problem = problem
                await self._close()
                await asyncio.sleep(LOOK_SECONDS)
        finally:
            await self._close()

    async def serve_until_lost(self) -> None:
        """Serve; return when it must be done anew. Raises OSError, Unreachable."""
        raise NotImplementedError

    async def open(self, path: Path, handlers: tuple[grpc.GenericRpcHandler, ...]) -> None:
        """Serve at this socket, in the place of one that a killed agent may have left. Raises OSError."""
        _remove(path)
        self._served.append((path, await calls.serve(path, handlers)))
        self._identities.append(identity(path))

    def are_there(self) -> bool:
        """Return whether all sockets are the ones that were opened; note that they could be."""
        self._problem = None
        return [identity(path) for path, _ in self._served] == self._identities

    async def _close(self) -> None:
        # The last one first: it may be how the kubelet finds the others.
        served, self._served = self._served[::-1], []
        self._identities = []
        for path, server in served:
            with contextlib.suppress(OSError):
                _remove(path)
            await server.stop(GRACE_SECONDS)


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)


def identity(path: Path) -> tuple[int, int] | None:
    """Return inode and time of the socket, which differ for a new one of its name; None if there is none."""
    try:
        facts = path.stat()
    except OSError:
        return None
    return facts.st_ino, facts.st_ctime_ns
