"""`python -m agent.remote.endpoint CONTROL LISTENER`: the port at which clients of remote shares reach this node.

A process of its own, as a user without rights: what comes from the network is read here, never by the agent. The agent
sends tickets and the ends of claims over the descriptor CONTROL, and answers each request for a connection to a claim's
server by a descriptor. LISTENER is the listening socket.
"""

import contextlib
import ctypes
import itertools
import json
import os
import queue
import select
import signal
import socket
import ssl
import sys
import threading
import time
from typing import Any

from agent import pinned_tls
from agent.remote import handshake
from agent.remote.handshake import Refused
from agent.remote.sessions import Sessions, Ticket

MOST_BYTES = 64 << 10
PR_SET_PDEATHSIG, PR_SET_NO_NEW_PRIVS = 1, 38
# Connections that have not said yet who they are: of all, and of one address.
MOST_STRANGERS, MOST_OF_ADDRESS = 64, 16
HANDSHAKE_SECONDS = 10.0
# A server that starts loads the driver first.
CONNECT_SECONDS = 20.0
COUNTS_SECONDS = 1.0


class Endpoint:
    """The sessions of one node, behind its port."""

    def __init__(self, control: socket.socket, listener: socket.socket, identity: pinned_tls.Identity) -> None:
        self._control, self._listener = control, listener
        self._context = pinned_tls.server_context(identity)
        self._sessions = Sessions(self._connect)
        self._numbers, self._lock = itertools.count(1), threading.Lock()
        self._asked: dict[int, queue.Queue[socket.socket | str]] = {}
        self._strangers: dict[str, int] = {}

    def run(self) -> None:
        """Serve until the agent ends."""
        threading.Thread(target=self._accept, name="accept", daemon=True).start()
        said: dict[str, dict[str, Any]] = {}
        poller, due = select.poll(), time.monotonic()
        poller.register(self._control, select.POLLIN)
        while True:
            if poller.poll(COUNTS_SECONDS * 1000):
                message, descriptors, _, _ = socket.recv_fds(self._control, MOST_BYTES, 1)
                if not message:
                    return
                self._take(json.loads(message), descriptors)
            if time.monotonic() >= due:
                due = time.monotonic() + COUNTS_SECONDS
                counts = {claim: one._asdict() for claim, one in self._sessions.counts().items()}
                news = {claim: one for claim, one in counts.items() if said.get(claim) != one}
                said = counts
                for claim, one in news.items():
                    self._control.send(json.dumps({"claim": claim, "counts": one}).encode())

    def _take(self, message: dict[str, Any], descriptors: list[int]) -> None:
        """Take a message of the agent."""
        match message:
            case {"ticket": digest, "claim": claim, "key": key, "seconds": seconds, "rate": rate}:
                self._sessions.add_ticket(digest, Ticket(claim, key, time.monotonic() + seconds, rate))
            case {"end": claim, "words": words, "for_good": for_good}:
                self._sessions.end_claim(claim, words, for_good=for_good)
                if for_good:
                    self._sessions.forget_counts(claim)
            case {"connected": number}:
                made = socket.socket(fileno=descriptors[0])
                if (waiting := self._asked.pop(number, None)) is None:
                    made.close()
                else:
                    waiting.put(made)
            case {"refused": number, "words": words}:
                if (waiting := self._asked.pop(number, None)) is not None:
                    waiting.put(words)

    def _connect(self, claim: str) -> socket.socket:
        """Return a connection to the claim's server. Raises Refused."""
        waiting: queue.Queue[socket.socket | str] = queue.Queue()
        with self._lock:
            number = next(self._numbers)
            self._asked[number] = waiting
        try:
            self._control.send(json.dumps({"connect": number, "claim": claim}).encode())
            found = waiting.get(timeout=CONNECT_SECONDS)
        except (OSError, queue.Empty) as error:
            self._asked.pop(number, None)
            raise Refused("The node's agent does not answer.") from error
        if isinstance(found, str):
            raise Refused(found)
        return found

    def _accept(self) -> None:
        while True:
            try:
                connection, address = self._listener.accept()
            except OSError:
                time.sleep(0.1)
                continue
            host = str(address[0])
            with self._lock:
                of_host = self._strangers.get(host, 0)
                fits = of_host < MOST_OF_ADDRESS and sum(self._strangers.values()) < MOST_STRANGERS
                if fits:
                    self._strangers[host] = of_host + 1
            if not fits:
                connection.close()
                continue
            threading.Thread(target=self._greet, args=(connection, host), name="greet", daemon=True).start()

    def _greet(self, connection: socket.socket, host: str) -> None:
        """Find out who it is."""
        # Whoever sends a byte now and then is ended, too.
        watchdog = threading.Timer(HANDSHAKE_SECONDS, _shut, [connection])
        watchdog.start()
        try:
            connection.settimeout(HANDSHAKE_SECONDS)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with contextlib.suppress(OSError, ValueError):
                stream = self._context.wrap_socket(connection, server_side=True)
                try:
                    opening = handshake.read(stream)
                    watchdog.cancel()
                    self._sessions.serve(stream, opening)
                except Refused as error:
                    handshake.refuse(stream, str(error))
                except OSError:
                    stream.close()
        finally:
            watchdog.cancel()
            with self._lock:
                self._strangers[host] -= 1
                if not self._strangers[host]:
                    del self._strangers[host]


def _shut(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        socket.socket.shutdown(connection, socket.SHUT_RDWR)


def become(uid: int | None) -> None:
    """Become this user without any right; None: stay the one that it is."""
    libc = ctypes.CDLL(None)
    if uid is not None:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def main(control_descriptor: str, listener_descriptor: str) -> int:
    """Take the first message, and serve."""
    # A Ctrl-C in a terminal is the agent's.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    control, listener = (socket.socket(fileno=int(one)) for one in (control_descriptor, listener_descriptor))
    first = json.loads(control.recv(MOST_BYTES) or b"{}")
    if not first:
        return 1
    # After the modules: the user may not be able to read them.
    identity = pinned_tls.Identity(first["key"], first["certificate"])
    endpoint = Endpoint(control, listener, identity)
    become(first["uid"])
    with contextlib.suppress(ssl.SSLError, OSError):
        endpoint.run()
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
