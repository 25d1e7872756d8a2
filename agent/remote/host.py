"""`python -m agent.remote.host`: the remoting server of one claim, in a network namespace of its own.

The agent starts it, puts it under the claim, and sends the order over its standard input. It leaves the machine's
network, becomes the tenant's user, starts the server with libvcuda preloaded, and answers each request of the agent by
a connection to the server. Nobody else can reach the server, whatever address it listens on. It ends with its agent,
with its server and with its claim. Standard library only.
"""

import contextlib
import ctypes
import fcntl
import json
import os
import resource
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from agent.jobs import resource_group

MOST_BYTES = 64 << 10
CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000
PR_SET_PDEATHSIG, PR_SET_NO_NEW_PRIVS = 1, 38
SIOCSIFFLAGS, IFF_UP, IFF_RUNNING = 0x8914, 0x1, 0x40
# A server that is loading the driver does not listen yet.
START_SECONDS, PAUSE_SECONDS = 15.0, 0.02
END_SECONDS = 2.0
# Of the server's own words, for the reason why it has ended.
MOST_WORDS = 500
PROCESSES, OPEN_FILES = 4096, 4096
CPU_WEIGHT = 100


class CannotIsolate(Exception):
    """This machine does not let the process make a network namespace; the message says why."""


def main() -> int:
    """Serve until the agent, the server or the claim ends."""
    control = socket.socket(fileno=os.dup(0))
    bounds: dict[str, Any] = json.loads(control.recv(MOST_BYTES) or b"{}")
    if not bounds:
        return 1
    # Before the agent puts it under its claim, whose control group is made below this one.
    resource_group.enter(
        bounds["group"], memory_bytes=bounds["memory_bytes"], most_processes=PROCESSES, cpu_weight=CPU_WEIGHT
    )
    control.send(json.dumps({"pid": os.getpid()}).encode())
    order: dict[str, Any] = json.loads(control.recv(MOST_BYTES) or b"{}")
    if not order:
        return 1
    try:
        leave_network()
        become(order["uid"])
    except (CannotIsolate, OSError) as error:
        tell(control, {"ended": f"the remoting server cannot be isolated: {error}"})
        return 1
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    reading, writing = os.pipe2(os.O_CLOEXEC)
    try:
        server = start(order, writing)
    except OSError as error:
        tell(control, {"ended": f"the remoting server cannot be started: {error}"})
        return 1
    os.close(writing)
    try:
        serve(control, server, reading, order["port"])
    finally:
        end(server)
    return 0


def start(order: dict[str, Any], output: int) -> "subprocess.Popen[bytes]":
    """Start the server. Raises OSError."""
    return subprocess.Popen(
        order["command"],
        env=order["environment"],
        cwd="/",
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        process_group=0,
        # This process has one thread.
        preexec_fn=die_with_parent,  # noqa: PLW1509
    )


def leave_network() -> None:
    """Enter a network namespace that has a loopback only. Raises CannotIsolate."""
    libc, uid, gid = ctypes.CDLL(None, use_errno=True), os.getuid(), os.getgid()
    flags = CLONE_NEWNET if uid == 0 else CLONE_NEWNET | CLONE_NEWUSER
    if libc.unshare(flags) != 0:
        raise CannotIsolate(f"unshare: {os.strerror(ctypes.get_errno())}")
    if uid != 0:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
        Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh22x", b"lo", IFF_UP | IFF_RUNNING))


def become(uid: int | None) -> None:
    """Become this user without any right; None: stay the one that it is. Raises OSError."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for kind, bound in ((resource.RLIMIT_NPROC, PROCESSES), (resource.RLIMIT_NOFILE, OPEN_FILES)):
        hard = resource.getrlimit(kind)[1]
        least = bound if hard == resource.RLIM_INFINITY else min(bound, hard)
        if kind == resource.RLIMIT_NOFILE or uid is not None:
            resource.setrlimit(kind, (least, least))
    os.umask(0o077)
    if uid is not None:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    if 0 in os.getresuid():
        raise PermissionError("a remoting server never runs as root")
    ctypes.CDLL(None).prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


def die_with_parent() -> None:
    """Have the kernel end this process with its parent."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def serve(control: socket.socket, server: "subprocess.Popen[bytes]", output: int, port: int) -> None:
    """Answer the agent's requests until it, or the server, ends."""
    poller, words, is_listening = select.poll(), b"", False
    ending = os.pidfd_open(server.pid)
    for descriptor in (control.fileno(), output, ending):
        poller.register(descriptor, select.POLLIN)
    while True:
        for descriptor, _ in poller.poll():
            if descriptor == output:
                data = os.read(output, MOST_BYTES)
                words = (words + data)[-MOST_WORDS:]
                if not data:
                    poller.unregister(output)
            elif descriptor == ending:
                tell(control, {"ended": describe_end(server.wait(), words)})
                return
            else:
                message = control.recv(MOST_BYTES)
                if not message:
                    return
                is_listening = connect(control, server, json.loads(message)["connect"], port, waits=not is_listening)


def connect(control: socket.socket, server: "subprocess.Popen[bytes]", number: int, port: int, *, waits: bool) -> bool:
    """Send the agent a connection to the server; return False if there is none."""
    deadline = time.monotonic() + (START_SECONDS if waits else 0)
    while True:
        try:
            # Not `create_connection`: it imports a codec, which this user may not be able to read.
            with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as made:
                made.settimeout(START_SECONDS)
                made.connect(("127.0.0.1", port))
                made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                socket.send_fds(control, [json.dumps({"connected": number}).encode()], [made.fileno()])
                return True
        except OSError as error:
            if server.poll() is not None or time.monotonic() > deadline:
                tell(control, {"refused": number, "words": f"the remoting server does not answer: {error.strerror}"})
                return False
        time.sleep(PAUSE_SECONDS)


def tell(control: socket.socket, message: dict[str, Any]) -> None:
    """Tell the agent, if it is there."""
    with contextlib.suppress(OSError):
        control.send(json.dumps(message).encode())


def describe_end(code: int, words: bytes) -> str:
    """Return why the server has ended."""
    how = f"was ended by signal {-code}" if code < 0 else f"has ended with exit code {code}"
    last = words.decode(errors="replace").strip().splitlines()
    return f"the remoting server {how}" + (f": {last[-1]}" if last and code else "")


def end(server: "subprocess.Popen[bytes]") -> None:
    """End the server and all that it has started."""
    for number, seconds in ((signal.SIGTERM, END_SECONDS), (signal.SIGKILL, END_SECONDS)):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(server.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(seconds)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(server.pid, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main())
