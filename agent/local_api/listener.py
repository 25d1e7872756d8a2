"""`<run dir>/agent.sock`: where programs come in under a claim.

A request that is late, large, malformed or not allowed gets a refusal in words and changes nothing. Who asks is the
kernel's word (SO_PEERCRED), never the request's.
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
import structlog

from agent.host import processes
from agent.host.processes import Process
from agent.local_wire import MAX_REQUEST_BYTES, Answer, Refusal, Request

log = structlog.get_logger()

# A caller sends one line at once; one that dawdles is not ours.
REQUEST_SECONDS = 5.0
MAX_CALLERS = 64
# Any user may fall silent here: not with all the places.
MAX_OF_A_USER = 16
_UCRED = struct.Struct("3i")


class Caller(NamedTuple):
    """Who asks, by the kernel's word."""

    process: Process
    uid: int
    gid: int


class Door:
    """The listening socket; `answer` is asked for each well-formed request, and may take its time."""

    def __init__(self, path: Path, answer: Callable[[Request, Caller], Answer | Awaitable[Answer]]) -> None:
        self._path = path
        self._answer = answer
        # By user. Root, and whoever runs as the agent, is not counted: nobody's silence shuts the door to them.
        self._callers: Counter[int] = Counter()
        self._server: asyncio.Server | None = None

    async def open(self) -> None:
        """Listen. The run directory's lock is held, so a socket that is there is a dead agent's."""
        self._path.unlink(missing_ok=True)
        self._server = await asyncio.start_unix_server(
            self._serve, path=self._path, limit=MAX_REQUEST_BYTES, backlog=128
        )
        # Every user's programs may ask; the claim's secret decides.
        self._path.chmod(0o666)

    async def close(self) -> None:
        """Stop listening and take the socket away, so that callers hear at once that no agent runs."""
        if self._server is not None:
            self._server.close()
            self._path.unlink(missing_ok=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            # Before the first wait: the caller is still there, and its pid its own.
            pid, uid, gid = _credentials(writer)
            process = processes.find(pid)
            with self._counted(uid):
                caller = None if process is None else Caller(process, uid, gid)
                reply = self._full(uid) or await self._reply(reader, caller)
                writer.write(msgspec.json.encode(reply) + b"\n")
                async with asyncio.timeout(REQUEST_SECONDS):
                    await writer.drain()
        except (OSError, TimeoutError):
            # The caller left, or does not read: its loss.
            pass
        except Exception:
            log.exception("request-failed")
        finally:
            writer.close()

    @contextlib.contextmanager
    def _counted(self, uid: int) -> Iterator[None]:
        if uid in (0, os.getuid()):
            yield
            return
        self._callers[uid] += 1
        try:
            yield
        finally:
            self._callers[uid] -= 1
            # Users without callers leave nothing.
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
    """Pid, user and group of who connected. Raises OSError."""
    connection: socket.socket = writer.get_extra_info("socket")
    pid, uid, gid = _UCRED.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    return pid, uid, gid
