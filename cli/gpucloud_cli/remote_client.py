"""The client's side of a remote share: a port on this machine's loopback for a program's CUDA calls.

The program loads a remoting component's `libcuda.so.1`, which calls the port. Each of its connections goes to the node
over TLS and outlives a lost connection by a few seconds. Only processes of this user get through.
"""

import contextlib
import hashlib
import hmac
import json
import os
import secrets
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from gpucloud_cli.failures import Failure
from gpucloud_cli.link import Broken, Link

VERSION = 1
CONNECT_SECONDS = 10.0
# The node keeps a stream for five seconds, and needs up to four to notice that its connection is lost.
AGAIN_SECONDS, PAUSE_SECONDS = 8.0, 0.1
MOST_LINE_BYTES = 4000
# Where a component's client lies unless GPUCLOUD_REMOTE_CLIENT names a directory.
DIRECTORIES = ("/opt/lupine/lib", "/usr/local/lib/lupine", "/usr/lib/lupine")
# The names of the secrets that the program must not get.
SECRETS = ("GPUCLOUD_TOKEN", "GPUCLOUD_TOKEN_FILE")


class Kind(NamedTuple):
    """A component's client: words by which its library is told from others, and the variables that it needs."""

    marks: tuple[bytes, ...]
    # With HOST:PORT in the place of `{}`.
    environment: Mapping[str, str]
    # What its users must know: docs/remote.md, "What runs".
    caution: str = ""


CAUTION = (
    "caution: a program that calls CUDA from several threads can get wrong results through lupine; before a training "
    "in PyTorch, call torch.autograd.set_multithreading_enabled(False) (docs/remote.md)"
)
# LUPINE_DISABLE_LOCAL: this machine's own GPUs, if it has any, are nobody's claim.
COMPONENTS = {
    "lupine": Kind((b"LUPINE_SERVER", b"x-lupine"), {"LUPINE_SERVER": "{}", "LUPINE_DISABLE_LOCAL": "1"}, CAUTION),
}


class NoRemote(Failure):
    """The claim cannot be used from this machine."""

    exit = 3


class Refused(Exception):
    """The node refuses a stream; the message says why."""


def find_library(component: str, environment: Mapping[str, str]) -> Path:
    """Return the directory of the component's libcuda.so.1 on this machine. Raises NoRemote."""
    if (kind := COMPONENTS.get(component)) is None:
        raise NoRemote(f"The node serves {component}, which this version of gpucloud does not know: upgrade it.")
    named = environment.get("GPUCLOUD_REMOTE_CLIENT")
    for directory in [named] if named else DIRECTORIES:
        library = Path(directory) / "libcuda.so.1"
        with contextlib.suppress(OSError):
            content = library.read_bytes()
            if all(mark in content for mark in kind.marks):
                return library.parent
            raise NoRemote(f"{library} is not {component}'s: GPUCLOUD_REMOTE_CLIENT names the directory of another.")
    raise NoRemote(
        f"There is no {named or DIRECTORIES[0]}/libcuda.so.1: install the client of {component} on this machine "
        "(docs/remote.md), and set GPUCLOUD_REMOTE_CLIENT to its directory if it is elsewhere."
    )


def environment_of(component: str, directory: Path, port: int, claim: str, own: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a program that uses the port."""
    environment = {name: value for name, value in own.items() if name not in SECRETS}
    # A device of this machine is not one of the claim's.
    environment.pop("CUDA_VISIBLE_DEVICES", None)
    given = COMPONENTS[component].environment.items()
    environment |= {name: value.format(f"127.0.0.1:{port}") for name, value in given}
    others = [part for part in own.get("LD_LIBRARY_PATH", "").split(":") if part]
    environment["LD_LIBRARY_PATH"] = ":".join([str(directory), *others])
    return environment | {"GPUCLOUD_CLAIM": claim}


class Totals(NamedTuple):
    """Bytes and round trips so far."""

    sent_bytes: int
    received_bytes: int
    # Requests that waited for an answer, about.
    turns: int
    trip_seconds: float | None


class RemoteShare:
    """The port and its streams."""

    def __init__(self, place: Mapping[str, Any], key: str, tell: Callable[[str], None]) -> None:
        """Open the port. `place` is the answer of `POST claims/UID/remote/` for this key; `tell` prints a line."""
        self._place, self._key, self._tell = place, key, tell
        self._session: str | None = None
        # One connection after the other until the ticket is used.
        self._opening = threading.Lock()
        self._links: list[Link] = []
        self._told: set[str] = set()
        self._is_over = False
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]

    def start(self) -> None:
        """Open the session, and take programs' connections from now on. Raises NoRemote."""
        threading.Thread(target=self._accept, name="remote", daemon=True).start()

    def stop(self) -> None:
        """End all streams."""
        self._is_over = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for link in self._links:
            link.stop("the client has ended")

    @property
    def totals(self) -> Totals:
        """Return what has been moved so far."""
        trips = [link.trip_seconds for link in self._links if link.trip_seconds is not None]
        return Totals(
            sum(link.taken for link in self._links),
            sum(link.received for link in self._links),
            sum(link.turns for link in self._links),
            min(trips, default=None),
        )

    def _accept(self) -> None:
        while not self._is_over:
            try:
                local, address = self._listener.accept()
            except OSError:
                return
            if user_of(address[1], self.port) != os.getuid():
                local.close()
                self._tell_once("a process of another user tried to use this machine's port of the remote GPU")
                continue
            local.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self._serve, args=(local,), name="stream", daemon=True).start()

    def _serve(self, local: socket.socket) -> None:
        """Carry one connection of a program until it is over."""
        link, channel = Link(local), secrets.token_urlsafe(16)
        self._links.append(link)
        lost_at: float | None = None
        try:
            while True:
                try:
                    stream, received = self._connect(channel, link.received)
                    link.attach(stream, received)
                    lost_at = None
                    if link.run():
                        break
                except OSError as error:
                    words = str(error)
                else:
                    words = "the connection was lost"
                lost_at = lost_at or time.monotonic()
                if link.local_ended or self._is_over:
                    break
                if time.monotonic() - lost_at > AGAIN_SECONDS:
                    raise Refused(f"The node cannot be reached: {words}")
                time.sleep(PAUSE_SECONDS)
            if link.why and not self._is_over:
                self._tell_once(f"the remote GPU is gone: {link.why}")
        except (Refused, Broken) as error:
            self._tell_once(f"the remote GPU cannot be used: {error}")
        finally:
            link.close()

    def _connect(self, channel: str, received: int) -> tuple[ssl.SSLSocket, int]:
        """Return a connection for this stream, and how much the node has received of it. Raises Refused, OSError."""
        with self._opening if self._session is None else contextlib.nullcontext():
            opening = {"v": VERSION, "claim": self._place["claim"], "key": self._key, "channel": channel}
            opening |= {"received": received}
            opening |= {"ticket": self._place["ticket"]} if self._session is None else {"session": self._session}
            stream = self._dial()
            try:
                stream.sendall(json.dumps(opening).encode() + b"\n")
                answer = json.loads(_read_line(stream))
            except ValueError as error:
                stream.close()
                raise Refused("The node's answer makes no sense.") from error
            except OSError:
                stream.close()
                raise
            if answer.get("refused"):
                stream.close()
                raise Refused(str(answer["refused"])[:500])
            self._session = str(answer["session"])
            return stream, int(answer.get("received", 0))

    def _dial(self) -> ssl.SSLSocket:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        # The certificate is the node's own; which it is, the server says.
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        made = socket.create_connection((self._place["host"], self._place["port"]), timeout=CONNECT_SECONDS)
        try:
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            stream = context.wrap_socket(made)
        except OSError:
            made.close()
            raise
        shown = hashlib.sha256(stream.getpeercert(binary_form=True) or b"").hexdigest()
        if not hmac.compare_digest(shown, self._place["fingerprint"]):
            stream.close()
            raise Refused("Another machine answers at the node's address, or its agent was started again.")
        return stream

    def _tell_once(self, words: str) -> None:
        if words not in self._told:
            self._told.add(words)
            self._tell(words)


def new_key() -> tuple[str, str]:
    """Return a key, and its digest for the server."""
    key = secrets.token_urlsafe(32)
    return key, hashlib.sha256(key.encode()).hexdigest()


def user_of(port: int, other_port: int) -> int | None:
    """Return the user of the loopback connection from this port to the other one; None if it is not known."""
    ends = f"0100007F:{port:04X}", f"0100007F:{other_port:04X}"
    for line in Path("/proc/net/tcp").read_text(encoding="ascii").splitlines()[1:]:
        fields = line.split()
        if (fields[1], fields[2]) == ends:
            return int(fields[7])
    return None


def _read_line(stream: ssl.SSLSocket) -> bytes:
    """Read up to the end of the line and nothing after it. Raises OSError."""
    line = b""
    while not line.endswith(b"\n") and len(line) < MOST_LINE_BYTES:
        byte = stream.recv(1)
        if not byte:
            raise OSError("the node closed the connection")
        line += byte
    return line
