"""Notebooks of this node: Jupyter of a run, which listens at a unix socket in the run's home.

Only the run's user can enter the home, so no other tenant of the node reaches Jupyter. But the user decides what is
there under the socket's name, and the agent may have more rights than the user. So it connects to a socket that this
user has made, and to nothing that the name may lead to.
"""

import asyncio
import contextlib
import json
import os
import socket
import stat
import struct
import time
from collections.abc import Callable
from datetime import datetime
from typing import Any

from msgspec import UNSET, UnsetType

from agent import statefile, wire
from agent.jobs.run_directory import RunDirectory

# In the run's home; `apps.jobs.services.notebooks` has Jupyter make it.
SOCKET = ".notebook.sock"
TOKEN = "JUPYTER_TOKEN"  # noqa: S105 - the name of a variable
# Between two looks for use, and for one answer, whose length the tenant decides.
LOOK_SECONDS, ANSWER_SECONDS, MOST_ANSWER_BYTES = 15.0, 5.0, 1 << 20
# struct ucred: pid, uid, gid (unix(7)).
CREDENTIALS = struct.Struct("3i")
NOT_READY = "The notebook does not answer yet: see the output of its job if this lasts."


class NoNotebook(Exception):
    """Failure to reach a notebook; the message is for the person who asked."""


def connect(directory: RunDirectory) -> socket.socket:
    """Return a connection to the run's Jupyter. Raises NoNotebook, OSError."""
    try:
        order = directory.order()
    except statefile.Damaged as error:
        raise NoNotebook(NOT_READY) from error
    if order is None:
        raise NoNotebook("The run has just ended.")
    uid = os.getuid() if order.uid is None else order.uid
    found = _find_socket(directory, uid)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.setblocking(False)
        # The socket that was looked at, whatever has its name now; paths of sockets are short, too.
        connection.connect(f"/proc/self/fd/{found}")
        _, peer, _ = CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size))
        if peer != uid:
            raise NoNotebook("The notebook's socket is not the run's own.")
    except (BlockingIOError, ConnectionError) as error:
        connection.close()
        raise NoNotebook(NOT_READY) from error
    except BaseException:
        connection.close()
        raise
    finally:
        os.close(found)
    return connection


def _find_socket(directory: RunDirectory, uid: int) -> int:
    """Return a descriptor that names the socket, if it is one of this user."""
    home = os.open(directory.home, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        found = os.open(SOCKET, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=home)
    except FileNotFoundError as error:
        raise NoNotebook(NOT_READY) from error
    finally:
        os.close(home)
    status = os.fstat(found)
    if not stat.S_ISSOCK(status.st_mode) or status.st_uid != uid:
        os.close(found)
        raise NoNotebook("The notebook's socket is not the run's own.")
    return found


class NotebookWatch:
    """The times since the notebooks of this node were used. The event loop's."""

    def __init__(self, directory_of: Callable[[str], RunDirectory]) -> None:
        self._directory_of = directory_of
        # By run: its token, when it was last seen in use, and for how long it was not used at the last look.
        self._tokens: dict[str, str] = {}
        self._used_at: dict[str, float] = {}
        self._idle: dict[str, int | UnsetType] = {}

    def follow(self, run: wire.JobRun) -> int | UnsetType:
        """Watch this running notebook; return the seconds since it was used, if they are known."""
        self._tokens.setdefault(run.uid, run.environment.get(TOKEN, ""))
        return self._idle.get(run.uid, UNSET)

    def forget(self, uid: str) -> None:
        """Stop watching a run."""
        for known in (self._tokens, self._used_at, self._idle):
            known.pop(uid, None)

    async def run(self) -> None:
        """Look again and again, until cancelled."""
        while True:
            await asyncio.gather(*(self._look(uid, token) for uid, token in list(self._tokens.items())))
            await asyncio.sleep(LOOK_SECONDS)

    async def _look(self, uid: str, token: str) -> None:
        """Look at one notebook. One that does not answer, or was not known to this agent, counts as used now."""
        now = time.time()
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                used_at = await _ask(self._directory_of(uid), token)
        except Exception:  # noqa: BLE001 - the answer is the tenant's, who must not end the agent by any of it
            used_at = None
        if uid not in self._tokens:
            return
        before = self._used_at.get(uid, now)
        self._used_at[uid] = min(now, max(before, now if used_at is None else used_at))
        self._idle[uid] = UNSET if used_at is None else int(now - self._used_at[uid])


async def _ask(directory: RunDirectory, token: str) -> float:
    """Return when the notebook was last used: now, if a kernel is busy or somebody is connected to one."""
    status = await _get(directory, token, "/api/status")
    # So that looking is no use.
    kernels = await _get(directory, token, "/api/kernels?no_track_activity=1")
    if status["connections"] or any(kernel["execution_state"] == "busy" for kernel in kernels):
        return time.time()
    return datetime.fromisoformat(status["last_activity"]).timestamp()


async def _get(directory: RunDirectory, token: str, path: str) -> Any:
    """Return the answer of Jupyter's API. Raises ValueError for anything else."""
    reader, writer = await asyncio.open_unix_connection(sock=connect(directory), limit=MOST_ANSWER_BYTES)
    try:
        # HTTP/1.0: the answer ends with the connection.
        writer.write(f"GET {path} HTTP/1.0\r\nHost: localhost\r\nAuthorization: token {token}\r\n\r\n".encode())
        text = b""
        while len(text) < MOST_ANSWER_BYTES and (data := await reader.read(MOST_ANSWER_BYTES)):
            text += data
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
    head, _, body = text.partition(b"\r\n\r\n")
    if head.split(b" ")[1:2] != [b"200"]:
        raise ValueError("Jupyter refused to answer")
    return json.loads(body)
