"""A terminal at the server, shown in this one."""

import contextlib
import json
import os
import select
import signal
import sys
import termios
import threading
import tty
from collections.abc import Iterator
from typing import Any

from gpucloud_cli import output
from gpucloud_cli.api import is_loopback
from gpucloud_cli.failures import Exit, Failure, Unreachable

CHUNK_BYTES = 16 << 10
END_OF_INPUT = b"\x04"
CLOSED_WELL = 1000


def run(url: str, token: str, path: str, command: list[str]) -> int:
    """Run the command in a terminal there until it ends; return its exit code. Raises Failure."""
    # Half a command's start, which no other command needs.
    from websockets.exceptions import ConnectionClosed, WebSocketException  # noqa: PLC0415
    from websockets.sync.client import connect  # noqa: PLC0415

    try:
        socket = connect(
            f"ws{url.removeprefix('http')}/ws/{path}",
            additional_headers={"Authorization": f"Bearer {token}"},
            compression=None,
            close_timeout=1,
            # A terminal whose output is held up is no lost server.
            ping_timeout=None,
            proxy=None if is_loopback(url) else True,
        )
    except (OSError, WebSocketException) as error:
        raise Unreachable(f"{url} opens no terminal: {error}") from error
    stop, stopping = os.pipe()
    with socket, _raw(), _size_changes() as resized:
        try:
            socket.send(json.dumps({"command": command, "term": os.environ.get("TERM", "dumb"), **_size()}))
            typing = threading.Thread(target=_type, args=(socket, resized, stop), daemon=True)
            typing.start()
            return _show(socket)
        except ConnectionClosed as closed:
            words = closed.rcvd.reason if closed.rcvd is not None else "the connection to the server was lost"
        finally:
            os.close(stopping)
    raise Failure(f"the terminal was closed: {words}")


def _show(socket: Any) -> int:
    """Show what comes; return the exit code."""
    for message in _messages(socket):
        if isinstance(message, bytes):
            _write(message)
            continue
        news = json.loads(message)
        if "exit" in news:
            return int(news["exit"])
        output.say(f"{news.get('ended', 'the terminal has ended')}\r")
        return Exit.FAILED
    return Exit.FAILED


def _write(data: bytes) -> None:
    while data:
        data = data[os.write(1, data) :]


def _messages(socket: Any) -> Iterator[str | bytes]:
    while True:
        yield socket.recv()


def _type(socket: Any, resized: int, stop: int) -> None:
    """Send what is typed, and the window's size when it changes."""
    watched = [0, resized, stop]
    # The main thread hears of a lost connection, too.
    with contextlib.suppress(Exception):
        while True:
            ready, _, _ = select.select(watched, [], [])
            if stop in ready:
                return
            if resized in ready:
                os.read(resized, CHUNK_BYTES)
                socket.send(json.dumps(_size()))
            if 0 in ready:
                data = os.read(0, CHUNK_BYTES)
                socket.send(data or END_OF_INPUT)
                if not data:
                    watched.remove(0)


def _size() -> dict[str, int]:
    for descriptor in (0, 1, 2):
        with contextlib.suppress(OSError):
            columns, rows = os.get_terminal_size(descriptor)
            if columns and rows:
                return {"columns": columns, "rows": rows}
    return {"columns": 80, "rows": 24}


@contextlib.contextmanager
def _raw() -> Iterator[None]:
    """Pass every key on, where input is a terminal."""
    if not sys.stdin.isatty():
        yield
        return
    before = termios.tcgetattr(0)
    try:
        # What was typed before stays.
        tty.setraw(0, termios.TCSANOW)
        yield
    finally:
        termios.tcsetattr(0, termios.TCSADRAIN, before)


@contextlib.contextmanager
def _size_changes() -> Iterator[int]:
    """Return a pipe that can be read when the window's size has changed."""
    reading, writing = os.pipe2(os.O_NONBLOCK)
    before = signal.signal(signal.SIGWINCH, lambda *_: None)
    woken = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    try:
        yield reading
    finally:
        signal.set_wakeup_fd(woken)
        signal.signal(signal.SIGWINCH, before)
        os.close(reading)
        os.close(writing)
