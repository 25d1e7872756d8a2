"""`python -m agent.jobs.terminal_process NAME`: one terminal of a run, started by the run's keeper in its directory.

As the keeper's descendant it has the run's bounds and sandbox, and ends with the run; in a run with an image, the
container has both, and the program is the engine's client, which starts the command in it. It makes the terminal, forks
the program, hands the terminal's other side to the agent, which waits at the socket NAME, and ends with the agent's
connection or with the program, and everything that was started in it. Standard library only.

To the agent: the program's process, with the terminal; then its exit code. From the agent: command and environment.
"""

import contextlib
import ctypes
import fcntl
import json
import os
import select
import signal
import socket
import sys
import termios
import time
from collections.abc import Callable
from typing import Any, NoReturn

from agent.host import processes
from agent.host.processes import Process
from agent.jobs import descendants, engine, program
from agent.jobs.container_terminal import ContainerTerminal
from agent.jobs.files import ORDER, read

PR_SET_CHILD_SUBREAPER = 36
# From the hangup to SIGKILL.
HANGUP_SECONDS, POLL_SECONDS = 1.0, 0.02
CHUNK_BYTES = 64 << 10
# For the engine's own part, after the programs.
ENGINE_SECONDS = 3.0


def main(name: str) -> int:
    """Serve one terminal to its end."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTTOU):
        signal.signal(number, signal.SIG_IGN)
    woken, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    agent = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    agent.connect(name)
    order = read(ORDER)
    master, slave = os.openpty()
    inside = ContainerTerminal(order) if order.get("container") is not None else None
    if order["uid"] is not None:
        # Programs open their terminal by name, too.
        os.fchown(slave, order["uid"], -1)
    waiting, go = os.pipe()
    pid = _fork(order, inside, slave, waiting, go)
    os.close(slave)
    os.close(waiting)
    socket.send_fds(agent, [json.dumps(processes.find(pid)).encode() + b"\n"], [master])
    # The terminal hangs up when the agent closes it.
    os.close(master)
    try:
        code = _serve(agent, pid, go, woken)
        if code is not None and not (inside is not None and inside.ended_with_run(code)):
            with contextlib.suppress(OSError):
                agent.sendall(json.dumps(code).encode() + b"\n")
    finally:
        if inside is not None:
            # First the programs: the engine's part, which has no other child, then ends by itself.
            _end_all(inside.find_programs)
            _await_end(ENGINE_SECONDS)
        _end_all(descendants.find)
    return 0


def _fork(order: dict[str, Any], inside: ContainerTerminal | None, slave: int, waiting: int, go: int) -> int:
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(go)
            _become(order, inside, slave, waiting, parent)
        except BaseException as error:  # noqa: BLE001 - whatever it is, the child must not go on as a second parent
            os.write(2, f"gpucloud: {error}\n".encode())
        finally:
            os._exit(program.EXIT_FAILED)
    return pid


def _serve(agent: socket.socket, pid: int, go: int, woken: int) -> int | None:
    """Return the program's exit code; None if the agent hung up before."""
    text, is_begun = b"", False
    watched: list[Any] = [agent, woken]
    while True:
        ready, _, _ = select.select(watched, [], [])
        if woken in ready:
            os.read(woken, 4096)
            while (status := _reap(pid)) is not False:
                if status is not None:
                    code = os.waitstatus_to_exitcode(status)
                    return 128 - code if code < 0 else code
        if agent in ready:
            try:
                data = agent.recv(CHUNK_BYTES)
            except OSError:
                return None
            if not data:
                return None
            text += data
            if not is_begun and text.endswith(b"\n"):
                is_begun = True
                with os.fdopen(go, "wb") as pipe:
                    pipe.write(text)


def _reap(pid: int) -> int | bool | None:
    """Reap one child; return the status of the program, None for another child, False if there is none to reap."""
    try:
        found, status = os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return False
    if found == 0:
        return False
    return status if found == pid else None


def _await_end(seconds: float) -> None:
    """Wait until nothing is below this process, for so long at most."""
    until = time.monotonic() + seconds
    while descendants.find() and time.monotonic() < until:
        _reap_all()
        select.select([], [], [], POLL_SECONDS)


def _reap_all() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _end_all(find: Callable[[], set[Process]]) -> None:
    """End what is left: by a hangup, then by SIGKILL."""
    waits = HANGUP_SECONDS
    while found := find():
        number = signal.SIGHUP if waits == HANGUP_SECONDS else signal.SIGKILL
        if number == signal.SIGHUP or waits <= 0:
            for process in found:
                processes.send(process, number)
                processes.send(process, signal.SIGCONT)
        select.select([], [], [], POLL_SECONDS)
        waits -= POLL_SECONDS
        _reap_all()


def _become(order: dict[str, Any], inside: ContainerTerminal | None, slave: int, waiting: int, parent: int) -> NoReturn:
    """Become the program in the terminal, as soon as its environment comes: as the run's user, with its limits."""
    signal.set_wakeup_fd(-1)
    for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_DFL)
    os.setsid()
    fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
    for standard in (0, 1, 2):
        os.dup2(slave, standard)
    prctl = ctypes.CDLL(None).prctl
    if inside is None:
        program.restrict(order)
        prctl(program.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    prctl(program.PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(program.EXIT_FAILED)
    os.chdir(order["home"] if inside is None else "/")
    text = b""
    while data := os.read(waiting, CHUNK_BYTES):
        text += data
    if not text:
        os._exit(program.EXIT_FAILED)
    asked = json.loads(text)
    if inside is not None:
        program.execute(inside.command(asked["command"], asked["environment"]), engine.ENVIRONMENT)
    program.execute(asked["command"], asked["environment"])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
