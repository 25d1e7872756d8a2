"""`<run dir>/agent.sock`: where programs come in under a claim.

A request that is late, large, malformed or not allowed gets a refusal in words and changes nothing. Who asks is the
kernel's word (SO_PEERCRED), never the request's.
"""

import asyncio
import socket
import struct
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import msgspec
import structlog

from agent.door.localwire import MAX_REQUEST_BYTES, Answer, Refusal, Request
from agent.machine import processes
from agent.machine.processes import Process

log = structlog.get_logger()

# A caller sends one line at once; one that dawdles is not ours.
REQUEST_SECONDS = 5.0
MAX_CALLERS = 64
_UCRED = struct.Struct("3i")


class Caller(NamedTuple):
    """Who asks, by the kernel's word."""

    process: Process
    uid: int
    gid: int


class Door:
    """The listening socket; `answer` is asked for each well-formed request."""

    def __init__(self, path: Path, answer: Callable[[Request, Caller], Answer]) -> None:
        self._path = path
        self._answer = answer
        self._callers = 0
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
        self._callers += 1
        try:
            reply = await self._reply(reader, writer)
            writer.write(msgspec.json.encode(reply) + b"\n")
            async with asyncio.timeout(REQUEST_SECONDS):
                await writer.drain()
        except (OSError, TimeoutError):
            # The caller left, or does not read: its loss.
            pass
        except Exception:
            log.exception("request-failed")
        finally:
            self._callers -= 1
            writer.close()

    async def _reply(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Answer:
        if self._callers > MAX_CALLERS:
            return Refusal(code="busy", detail=f"{MAX_CALLERS} others are asking; try again.")
        # Before the first wait: the caller is still there, and its pid its own.
        caller = _caller(writer)
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
            return self._answer(request, caller)
        except OSError as error:
            log.warning("request-failed", reason=str(error))
            return Refusal(code="failed", detail=f"The agent could not do it: {error}.")


def _caller(writer: asyncio.StreamWriter) -> Caller | None:
    """Who is at the other end; None if it is gone already."""
    connection: socket.socket = writer.get_extra_info("socket")
    pid, uid, gid = _UCRED.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    process = processes.find(pid)
    return None if process is None else Caller(process, uid, gid)
