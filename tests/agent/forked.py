"""Agents forked from a process that has imported the agent: imports are four fifths of an agent's start.

Tests start four hundred agents. What `python -m agent run` does before that is tested where it is started as a program
(tests/agent/test_enrolment.py, tests/e2e).
"""

import atexit
import contextlib
import ctypes
import functools
import gc
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).resolve().parents[2]
PR_SET_PDEATHSIG = 1
STATUS = struct.Struct("i")
LONGEST_REQUEST = 1 << 20


class Forked:
    """A forked process, with the methods of subprocess.Popen that tests use."""

    stdout: IO[bytes] | None = None
    stderr: IO[bytes] | None = None

    def __init__(self, pid: int, ending: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        # Its parent writes its exit status there.
        self._ending = ending

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal; None while it runs."""
        return self._wait(0)

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code once it has ended; raise subprocess.TimeoutExpired after so many seconds."""
        code = self._wait(timeout)
        if code is None:
            raise subprocess.TimeoutExpired("agent", timeout or 0)
        return code

    def _wait(self, timeout: float | None) -> int | None:
        if self.returncode is None and select.select([self._ending], [], [], timeout)[0]:
            (self.returncode,) = STATUS.unpack(os.read(self._ending, STATUS.size))
            os.close(self._ending)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class ForkServer:
    """The process that forks. It ends when its socket closes, and the kernel ends its children with it."""

    def __init__(self) -> None:
        self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-m", "tests.agent.forked", str(theirs.fileno())]
        variables = os.environ | {"PYTHONPATH": str(ROOT)}
        with theirs:
            self._process = subprocess.Popen(command, cwd=ROOT, pass_fds=[theirs.fileno()], env=variables)
        atexit.register(self.close)

    def start(self, arguments: list[str], *, environment: dict[str, str], stderr: int) -> Forked:
        """Fork an agent with these arguments and this environment."""
        ending, written = os.pipe()
        try:
            request = json.dumps({"arguments": arguments, "environment": environment}).encode()
            socket.send_fds(self._ours, [request], [stderr, written])
        finally:
            os.close(written)
        (pid,) = STATUS.unpack(self._ours.recv(STATUS.size))
        return Forked(pid, ending)

    def close(self) -> None:
        """End it; agents that still run get SIGTERM from the kernel."""
        self._ours.close()
        self._process.wait()


@functools.cache
def server() -> ForkServer:
    """Return this process's own server."""
    return ForkServer()


class _Forking:
    """The server's side."""

    def __init__(self, requests: socket.socket, main: Callable[[], int]) -> None:
        self._requests, self._main = requests, main
        self._endings: dict[int, int] = {}

    def serve(self) -> None:
        """Fork for each request and report each end, until the tests' process closes its socket."""
        woken, wake = os.pipe2(os.O_NONBLOCK)
        signal.set_wakeup_fd(wake)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        watched: list[Any] = [self._requests, woken]
        while True:
            ready, _, _ = select.select(watched, [], [])
            if woken in ready:
                os.read(woken, 4096)
                self._report()
            if self._requests in ready and not self._fork([woken, wake]):
                return

    def _report(self) -> None:
        for pid in list(self._endings):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                ending = self._endings.pop(pid)
                # The test may have gone.
                with contextlib.suppress(BrokenPipeError):
                    os.write(ending, STATUS.pack(os.waitstatus_to_exitcode(status)))
                os.close(ending)

    def _fork(self, own: list[int]) -> bool:
        message, fds, _, _ = socket.recv_fds(self._requests, LONGEST_REQUEST, 2)
        if not message:
            return False
        stderr, ending = fds
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            for fd in (*own, self._requests.fileno(), ending, *self._endings.values()):
                os.close(fd)
            self._become_agent(json.loads(message), stderr, parent)
        os.close(stderr)
        self._endings[pid] = ending
        self._requests.send(STATUS.pack(pid))
        return True

    def _become_agent(self, request: dict[str, Any], stderr: int, parent: int) -> None:
        """Run the agent's command line in this child, as a new program would; never return."""
        code = 1
        try:
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
            os.dup2(stderr, 2)
            os.close(stderr)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            if os.getppid() != parent:
                return
            os.environ.clear()
            os.environ.update(request["environment"])
            sys.argv = ["agent", *request["arguments"]]
            code = self._main()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        except BaseException:  # noqa: BLE001 - it ends this child, whatever it is
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)


if __name__ == "__main__":
    # `agent run` imports the daemon only when it is called.
    import agent.runner  # noqa: F401
    from agent.__main__ import main

    gc.freeze()
    _Forking(socket.socket(fileno=int(sys.argv[1])), main).serve()
