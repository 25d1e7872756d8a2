"""The agent's side of a run's terminals: asks the run's keeper for one, and puts its program under the claim."""

import asyncio
import contextlib
import fcntl
import json
import os
import secrets
import socket
import struct
import termios
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import NamedTuple, Self

import msgspec

from agent import wire
from agent.host.processes import Process
from agent.jobs import files
from agent.jobs.environments import environment_of
from agent.jobs.run_directory import Order, RunDirectory
from agent.launch import authorization
from agent.local_wire import Environment, Refusal
from agent.node import Node
from agent.settings import Library

# A keeper looks for new terminals ten times a second, and starts an interpreter.
OPEN_SECONDS = 10.0
CHUNK_BYTES = 32 << 10
SHELL = "/bin/bash"
SHELL_OF_IMAGES = ["sh", "-c", "if command -v bash >/dev/null; then exec bash; else exec sh; fi"]


class NoTerminal(Exception):
    """Failure to open a terminal; the message is for the person who asked."""


class Admission(NamedTuple):
    """The admission of a terminal's program under a run's claim."""

    node: Node
    library: Library
    run: wire.JobRun

    def admit(self, process: Process, order: Order, directory: RunDirectory) -> dict[str, str]:
        """Put the program, which waits, under the claim; return its environment. Raises NoTerminal."""
        answer: Environment | Refusal | None
        claim = self.run.claim_uid
        if order.container is not None:
            answer = authorization.find_job_obstacle(self.node, self.library, claim, order.uid)
        else:
            answer = authorization.admit_job(self.node, self.library, claim_uid=claim, process=process, uid=order.uid)
        if isinstance(answer, Refusal):
            raise NoTerminal(answer.detail)
        # A container has its variables, by which its programs are known.
        return {} if answer is None else environment_of(self.run, directory, answer) | {"SHELL": _find_shell()}


class Terminal:
    """One open terminal. The event loop's."""

    def __init__(self, master: int, keeper: socket.socket) -> None:
        self._master, self._keeper = master, keeper
        # Bytes that the client has got, and whether more are on their way.
        self.shown, self.is_sending = 0, False
        os.set_blocking(master, False)

    @classmethod
    async def open(
        cls,
        directory: RunDirectory,
        command: list[str],
        variables: dict[str, str],
        admission: "Admission",
    ) -> Self:
        """Open a terminal in this run, and start the command in it, or a shell. Raises NoTerminal."""
        order = directory.order()
        if order is None:
            raise NoTerminal("The run has just ended.")
        connection, listener = await asyncio.to_thread(_ask_keeper, directory)
        listener.close()
        try:
            text, found, _, _ = socket.recv_fds(connection, 4096, 1)
            terminal = cls(found[0], connection)
            process = Process(*json.loads(text))
        except (OSError, ValueError, TypeError, IndexError) as error:
            connection.close()
            raise NoTerminal("The run has just ended.") from error
        try:
            environment = admission.admit(process, order, directory)
        except NoTerminal:
            terminal.close()
            raise
        shell = SHELL_OF_IMAGES if order.container is not None else [environment["SHELL"]]
        asked = {"command": command or shell, "environment": environment | variables}
        connection.setblocking(False)
        await asyncio.get_running_loop().sock_sendall(connection, json.dumps(asked).encode() + b"\n")
        return terminal

    def resize(self, columns: int, rows: int) -> None:
        """Set the window's size; the kernel tells the program by SIGWINCH."""
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    async def output(self) -> AsyncIterator[bytes]:
        """Yield what the programs write, until none has the terminal open. Who reads slowly slows them."""
        while True:
            try:
                data = os.read(self._master, CHUNK_BYTES)
            except BlockingIOError:
                await _until(asyncio.get_running_loop().add_reader, self._remove_reader, self._master)
                continue
            except OSError:
                # EIO: its last program has closed it.
                return
            yield data

    async def write(self, data: bytes) -> None:
        """Type this; wait until the programs have read so much that there is room."""
        while data:
            try:
                data = data[os.write(self._master, data) :]
            except BlockingIOError:
                await _until(asyncio.get_running_loop().add_writer, self._remove_writer, self._master)

    async def exit_code(self) -> int | None:
        """Wait for the program's end; return its exit code, None if the run ended first."""
        text = b""
        with contextlib.suppress(OSError, ValueError):
            while not text.endswith(b"\n"):
                data = await asyncio.get_running_loop().sock_recv(self._keeper, 64)
                if not data:
                    return None
                text += data
            return int(text)
        return None

    def close(self) -> None:
        """Hang up: everything that was started in the terminal ends."""
        self._remove_reader(self._master)
        self._remove_writer(self._master)
        os.close(self._master)
        self._keeper.close()

    @staticmethod
    def _remove_reader(descriptor: int) -> None:
        asyncio.get_running_loop().remove_reader(descriptor)

    @staticmethod
    def _remove_writer(descriptor: int) -> None:
        asyncio.get_running_loop().remove_writer(descriptor)


async def _until(add: Callable[..., object], remove: Callable[[int], object], descriptor: int) -> None:
    ready = asyncio.Event()
    add(descriptor, ready.set)
    try:
        await ready.wait()
    finally:
        remove(descriptor)


def _ask_keeper(directory: RunDirectory) -> tuple[socket.socket, socket.socket]:
    """Return the connection of a new terminal's process, and the socket at which it was awaited. Raises NoTerminal."""
    place = directory.root / files.TERMINALS
    place.mkdir(mode=0o700, exist_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    name, hidden = secrets.token_hex(8), f".{secrets.token_hex(8)}"
    # Paths of sockets are short, those of directories are not.
    within = os.open(place, os.O_PATH | os.O_DIRECTORY)
    try:
        listener.bind(f"/proc/self/fd/{within}/{hidden}")
        listener.listen(1)
        # Nobody connects before it listens.
        os.rename(hidden, name, src_dir_fd=within, dst_dir_fd=within)
        listener.settimeout(OPEN_SECONDS)
        connection, _ = listener.accept()
        connection.settimeout(OPEN_SECONDS)
    except TimeoutError as error:
        listener.close()
        words = "The run's keeper opens no terminal: the run has just ended, or began under an older agent."
        raise NoTerminal(words) from error
    finally:
        for one in (name, hidden):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(one, dir_fd=within)
        os.close(within)
    return connection, listener


def _find_shell() -> str:
    return SHELL if Path(SHELL).exists() else "/bin/sh"


class Asked(msgspec.Struct, frozen=True):
    """The first message of who opens a terminal."""

    command: list[str] = []
    columns: int = 80
    rows: int = 24
    term: str = "xterm-256color"


class Resized(msgspec.Struct, frozen=True):
    """A later text message: the window has another size."""

    columns: int
    rows: int


LARGEST_SIZE = 10_000


def decode_asked(message: str | bytes) -> Asked:
    """Return the first message. Raises NoTerminal."""
    try:
        asked = msgspec.json.decode(message, type=Asked)
    except (msgspec.DecodeError, UnicodeError) as error:
        raise NoTerminal(f"The first message opens the terminal: {error}") from error
    if any("\0" in word for word in (*asked.command, asked.term)) or (asked.command and not asked.command[0]):
        raise NoTerminal("The command names a program, and no word has a NUL.")
    check_size(asked.columns, asked.rows)
    return asked


def decode_resized(message: str) -> Resized:
    """Return the new size. Raises NoTerminal."""
    try:
        resized = msgspec.json.decode(message, type=Resized)
    except msgspec.DecodeError as error:
        raise NoTerminal(f"A text message says columns and rows: {error}") from error
    check_size(resized.columns, resized.rows)
    return resized


def check_size(columns: int, rows: int) -> None:
    """Refuse what no window is. Raises NoTerminal."""
    if not (0 < columns <= LARGEST_SIZE and 0 < rows <= LARGEST_SIZE):
        raise NoTerminal(f"A terminal has 1 to {LARGEST_SIZE} columns and rows.")
