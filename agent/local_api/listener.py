"""The listener on `<run dir>/agent.sock`, where programs ask to start under a claim.

A request that is late, large, malformed or not allowed gets a refusal in words and changes nothing. The kernel
identifies the caller (SO_PEERCRED), never the request.
"""

import asyncio
import contextlib
import os
import socket
import struct
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from agent.host import processes
from agent.host.processes import Process
from agent.local_wire import MAX_REQUEST_BYTES, Answer, Refusal, Request
from agent.logs import log

# A caller sends one line at once; a slow one is not ours.
REQUEST_SECONDS = 5.0
MAX_CALLERS = 64
# A user's silent callers must not take all places.
MAX_OF_A_USER = 16
_UCRED = struct.Struct("3i")


class Caller(NamedTuple):
    """The caller's credentials from the kernel."""

    process: Process
    uid: int
    gid: int


class Listener:
    """The listening socket; `answer` answers each well-formed request, and may be slow."""

    def __init__(self, path: Path, answer: Callable[[Request, Caller], Answer | Awaitable[Answer]]) -> None:
        self._path = path
        self._answer = answer
        # By user. Root and the agent's own user are not counted: no silent caller keeps them out.
        self._callers: Counter[int] = Counter()
        self._server: asyncio.Server | None = None

    async def open(self) -> None:
        """Listen. The run directory's lock is held, so an existing socket is a dead agent's."""
        self._path.unlink(missing_ok=True)
        self._server = await asyncio.start_unix_server(
            self._serve, path=self._path, limit=MAX_REQUEST_BYTES, backlog=128
        )
        # Every user's programs may connect; the claim's secret decides.
        self._path.chmod(0o666)

    async def close(self) -> None:
        """Stop listening and remove the socket, so that callers learn at once that no agent runs."""
        if self._server is not None:
            self._server.close()
            self._path.unlink(missing_ok=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            # Before the first wait: the caller still exists, and the pid is its own.
            pid, uid, gid = _credentials(writer)
            process = processes.find(pid)
            with self._count_caller(uid):
                caller = None if process is None else Caller(process, uid, gid)
                reply = self._full(uid) or await self._reply(reader, caller)
                writer.write(msgspec.json.encode(reply) + b"\n")
                async with asyncio.timeout(REQUEST_SECONDS):
                    await writer.drain()
        except (OSError, TimeoutError):
            # The caller left, or does not read the answer.
            pass
        except Exception:
            log.exception("request-failed")
        finally:
            writer.close()

    @contextlib.contextmanager
    def _count_caller(self, uid: int) -> Iterator[None]:
        if uid in (0, os.getuid()):
            yield
            return
        self._callers[uid] += 1
        try:
            yield
        finally:
            self._callers[uid] -= 1
            # Drop users without callers.
            self._callers = +self._callers

    def _full(self, uid: int) -> Refusal | None:
        if self._callers[uid] > MAX_OF_A_USER:
            return Refusal(code="busy", detail=f"{MAX_OF_A_USER} other programs of uid {uid} are asking; try again.")
        if uid in self._callers and self._callers.total() > MAX_CALLERS:
            return Refusal(code="busy", detail=f"{MAX_CALLERS} others are asking; try again.")
        return None

    async def _reply(self, reader: asyncio.StreamReader, caller: Caller | None) -> Answer:
        if caller is None:
            return Refusal(code="bad-request", detail="The caller is gone.")
        try:
            async with asyncio.timeout(REQUEST_SECONDS):
                line = await reader.readuntil(b"\n")
        except TimeoutError:
            return Refusal(code="too-slow", detail=f"No whole line within {REQUEST_SECONDS:.0f} s.")
        except asyncio.LimitOverrunError:
            return Refusal(code="too-large", detail=f"A request has at most {MAX_REQUEST_BYTES} bytes.")
        except asyncio.IncompleteReadError:
            return Refusal(code="bad-request", detail="A request is one JSON object and a line's end.")
        try:
            request = msgspec.json.decode(line, type=Request)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            return Refusal(code="bad-request", detail=f"The request is not valid: {error}")
        try:
            answer = self._answer(request, caller)
            return answer if isinstance(answer, Answer) else await answer
        except OSError as error:
            log.warning("request-failed", reason=str(error))
            return Refusal(code="failed", detail=f"The agent could not do it: {error}.")


def _credentials(writer: asyncio.StreamWriter) -> tuple[int, int, int]:
    """Return pid, user and group of the connected process. Raises OSError."""
    connection: socket.socket = writer.get_extra_info("socket")
    pid, uid, gid = _UCRED.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    return pid, uid, gid
