"""The program of a run, from the fork to its execution. Standard library only."""

import contextlib
import ctypes
import json
import os
import resource
import signal
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from agent.jobs import descendants
from agent.jobs.files import FILES

PR_SET_PDEATHSIG, PR_SET_NO_NEW_PRIVS = 1, 38
# As `env` and `docker run` have it.
EXIT_FAILED, EXIT_NOT_EXECUTABLE, EXIT_NOT_FOUND = 125, 126, 127
CHUNK_BYTES = 64 << 10
# From -1000 (never) to 1000 (first).
OOM_SCORE = "500"
# A pipe takes as many at once.
MOST_WORDS = 1500


class Started(NamedTuple):
    """A program that waits: its process, and the ends of pipes."""

    pid: int
    output: int
    # For its environment, which lets it execute.
    go: int
    # Why it did not execute; closed by its execution.
    refusal: int


def start(order: dict[str, Any]) -> Started:
    """Fork the program, which waits."""
    parent = os.getpid()
    told, telling = os.pipe()
    reading, writing = os.pipe()
    waiting, go = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(go)
            os.close(told)
            become(order, writing, waiting, telling, parent)
        except BaseException as error:  # noqa: BLE001 - whatever it is, the child must not go on as a second keeper
            os.write(2, f"gpucloud: {error}\n".encode())
        finally:
            os._exit(EXIT_FAILED)
    os.close(writing)
    os.close(waiting)
    os.close(telling)
    return Started(pid, reading, go, told)


def become(order: dict[str, Any], output: int, waiting: int, telling: int, parent: int) -> NoReturn:
    """Become the program: as its user, with its limits, as soon as its environment comes."""
    # Before rights are dropped, since the user may not be able to read Python's library; and not in the keeper, which
    # lives as long as the program and stays small.
    from agent.jobs import source  # noqa: PLC0415

    archive = source.open_files(Path(FILES))
    signal.set_wakeup_fd(-1)
    for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_DFL)
    os.setsid()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    restrict(order)
    prctl = ctypes.CDLL(None).prctl
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    # After the change of the user, which takes it away.
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(EXIT_FAILED)
    os.chdir(order["home"])
    text = b""
    while data := os.read(waiting, CHUNK_BYTES):
        text += data
    if not text:
        os._exit(EXIT_FAILED)
    environment = json.loads(text)
    try:
        source.prepare(order, archive, environment)
    except (source.Refused, OSError) as error:
        os.write(telling, str(error).encode()[:MOST_WORDS])
        os.write(2, f"gpucloud: {error}\n".encode())
        os._exit(EXIT_FAILED)
    execute(order["command"], environment)


def execute(command: list[str], environment: dict[str, str]) -> NoReturn:
    """Execute the command, or end as a shell would."""
    try:
        os.execvpe(command[0], command, environment)  # noqa: S606 - to become it is its purpose
    except (FileNotFoundError, NotADirectoryError):
        os.write(2, f"gpucloud: {command[0]}: command not found\n".encode())
        os._exit(EXIT_NOT_FOUND)
    except OSError as error:
        os.write(2, f"gpucloud: {command[0]}: {error.strerror}\n".encode())
        os._exit(EXIT_NOT_EXECUTABLE)


def restrict(order: dict[str, Any]) -> None:
    """Take the user of the order and its bounds."""
    with contextlib.suppress(OSError):
        # When memory runs out, a tenant's program ends before what the machine needs, and before its keeper.
        Path("/proc/self/oom_score_adj").write_text(OOM_SCORE)
    uid, own = order["uid"], 0
    if uid is None:
        # The bound counts all threads of the user, also those that are not of this run.
        own = descendants.count_own_threads()
    bounds = {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_NPROC: order["processes"] + own,
        resource.RLIMIT_NOFILE: order["files"],
        resource.RLIMIT_FSIZE: order["disk_bytes"],
    }
    for kind, bound in bounds.items():
        hard = resource.getrlimit(kind)[1]
        least = bound if hard == resource.RLIM_INFINITY else min(bound, hard)
        resource.setrlimit(kind, (least, least))
    os.umask(0o077)
    if uid is not None:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    if 0 in os.getresuid():
        raise PermissionError("a job's program never runs as root")
