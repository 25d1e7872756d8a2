"""The command's own side of a terminal: a real one here, and a websocket that records what it is sent."""

import contextlib
import fcntl
import json
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from websockets.sync.server import Server, ServerConnection, serve

CODE = "import sys; from gpucloud_cli import terminal; sys.exit(terminal.run(sys.argv[1], 'gpc_a.b', 'x/', ['top']))"


class Far:
    """The far side: what it got, and what it does with each message."""

    def __init__(self) -> None:
        self.got: list[str | bytes] = []
        self.token = ""

    def serve(self, socket: ServerConnection) -> None:
        assert socket.request is not None
        self.token = socket.request.headers["Authorization"]
        with contextlib.suppress(Exception):
            for message in socket:
                self.got.append(message)
                if message == b"q":
                    socket.send(json.dumps({"exit": 42}))
                elif message == b"c":
                    socket.close(4409, "The run has ended.")
                elif isinstance(message, bytes):
                    socket.send(b"<" + message + b">")


@pytest.fixture
def far() -> Iterator[tuple[Far, str]]:
    it = Far()
    server: Server
    with serve(it.serve, "127.0.0.1", 0) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield it, f"http://127.0.0.1:{server.socket.getsockname()[1]}"
        server.shutdown()
        thread.join()


@contextlib.contextmanager
def terminal(url: str) -> Iterator[tuple[int, subprocess.Popen[bytes]]]:
    """Start the command in a terminal of 100 × 30."""
    master, slave = pty.openpty()
    fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
    command = [sys.executable, "-c", CODE, url]
    process = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, start_new_session=True)
    try:
        yield master, process
    finally:
        process.kill()
        process.wait()
        os.close(master)
        os.close(slave)


def see(master: int, text: bytes) -> bytes:
    shown, until = b"", time.monotonic() + 30
    while text not in shown:
        ready, _, _ = select.select([master], [], [], max(0, until - time.monotonic()))
        assert ready, shown
        shown += os.read(master, 4096)
    return shown


def wait_for(found: Any) -> None:
    until = time.monotonic() + 30
    while not found():
        assert time.monotonic() < until
        time.sleep(0.02)


def test_keys_sizes_and_the_exit_code_pass(far: tuple[Far, str]) -> None:
    it, url = far
    with terminal(url) as (master, process):
        wait_for(lambda: it.got)
        assert json.loads(it.got[0])["command"] == ["top"]
        assert {"columns": 100, "rows": 30}.items() <= json.loads(it.got[0]).items()
        assert it.token == "Bearer gpc_a.b"
        # Ctrl-C is a key for the program there, not a signal here.
        os.write(master, b"\x03")
        see(master, b"<\x03>")
        fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
        process.send_signal(28)
        wait_for(lambda: '{"columns": 120, "rows": 40}' in it.got)
        os.write(master, b"q")
        assert process.wait(timeout=30) == 42
        # The terminal echoes and cooks again.
        assert termios.tcgetattr(master)[3] & termios.ECHO


def test_a_terminal_that_is_closed_there_is_said_in_words(far: tuple[Far, str]) -> None:
    it, url = far
    with terminal(url) as (master, process):
        wait_for(lambda: it.got)
        os.write(master, b"c")
        see(master, b"The run has ended.")
        assert process.wait(timeout=30) != 0


def test_input_that_ends_is_said_there(far: tuple[Far, str]) -> None:
    it, url = far
    process = subprocess.Popen([sys.executable, "-c", CODE, url], stdin=subprocess.DEVNULL)
    wait_for(lambda: b"\x04" in it.got)
    process.kill()
    process.wait()
