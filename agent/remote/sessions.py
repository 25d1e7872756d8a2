"""Tickets, the sessions that they open, and the channels of those. The endpoint's threads share them."""

import hashlib
import hmac
import queue
import secrets
import socket
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from agent.remote import handshake
from agent.remote.handshake import Answer, Opening, Refused
from agent.remote.link import Broken, Link, Pace

# A client that is away for longer has its channel closed: with SILENT_SECONDS before, all is free within ten seconds.
GRACE_SECONDS = 5.0
# The server's word may come a moment later than the client that has its ticket.
TICKET_SECONDS = 3.0
MOST_TICKETS, MOST_SESSIONS, MOST_CHANNELS = 1024, 16, 64
NOT_VALID = "The ticket is not valid here: it was used, is too old, or belongs to another claim or client."
NO_SESSION = "The session is over: its claim has ended, or the node's agent was started again."

Connect = Callable[[str], socket.socket]


class Ticket(NamedTuple):
    """The permission to open one session."""

    claim: str
    key_digest: str
    until: float
    bytes_per_second: int


class Counts(NamedTuple):
    """Bytes and round trips of one claim, and the number of its channels."""

    channels: int = 0
    received_bytes: int = 0
    sent_bytes: int = 0
    turns: int = 0
    trip_seconds: float | None = None


class Delivery(NamedTuple):
    """A connection that a channel goes on with."""

    stream: ssl.SSLSocket
    opening: Opening


class Channel:
    """One stream of a session: a connection of a program to its remoting server."""

    def __init__(self) -> None:
        self.link: Link | None = None
        self.next: queue.Queue[Delivery | None] = queue.Queue()
        self.words = ""

    def end(self, words: str) -> None:
        """End it, and tell the client why."""
        self.words = words
        if self.link is not None:
            self.link.stop(words)
        self.next.put(None)

    def offer(self, delivery: Delivery) -> None:
        """Have it go on with another connection."""
        self.next.put(delivery)
        if self.link is not None:
            self.link.interrupt()


@dataclass
class Session:
    """The right of one client to use one claim, until the claim ends."""

    claim: str
    key_digest: str
    pace: Pace
    uid: str = field(default_factory=lambda: secrets.token_urlsafe(24))
    channels: dict[str, Channel] = field(default_factory=dict)


class Sessions:
    """All of them. Thread-safe."""

    def __init__(self, connect: Connect) -> None:
        """Begin without any. `connect` returns a connection to a claim's server, or raises Refused."""
        self._connect = connect
        self._changed = threading.Condition()
        self._tickets: dict[str, Ticket] = {}
        self._sessions: dict[str, Session] = {}
        self._paces: dict[str, Pace] = {}
        # Of channels that are over.
        self._past: dict[str, Counts] = {}

    def add_ticket(self, digest: str, ticket: Ticket) -> None:
        """Take a ticket of the server's."""
        with self._changed:
            now = time.monotonic()
            self._tickets = {key: one for key, one in self._tickets.items() if one.until > now}
            if len(self._tickets) < MOST_TICKETS:
                self._tickets[digest] = ticket
            self._changed.notify_all()

    def end_claim(self, claim: str, words: str, *, for_good: bool) -> None:
        """End the claim's channels; `for_good`: its sessions and tickets, too."""
        with self._changed:
            sessions = [one for one in self._sessions.values() if one.claim == claim]
            channels = [channel for one in sessions for channel in one.channels.values()]
            if for_good:
                self._sessions = {uid: one for uid, one in self._sessions.items() if one.claim != claim}
                self._tickets = {key: one for key, one in self._tickets.items() if one.claim != claim}
                self._paces.pop(claim, None)
        for channel in channels:
            channel.end(words)

    def serve(self, stream: ssl.SSLSocket, opening: Opening) -> None:
        """Let a client's connection open a channel, or go on with one. Raises Refused, OSError."""
        session = self._find_session(opening)
        delivery = Delivery(stream, opening)
        with self._changed:
            if (channel := session.channels.get(opening.channel)) is None:
                if opening.received:
                    raise Refused("The stream is over: its program was away for too long.")
                if (
                    sum(len(one.channels) for one in self._sessions.values() if one.claim == session.claim)
                    >= MOST_CHANNELS
                ):
                    raise Refused(f"The claim has {MOST_CHANNELS} connections open, as many as it may have.")
                channel = session.channels[opening.channel] = Channel()
                channel.next.put(delivery)
                name = f"channel-{opening.channel[:8]}"
                threading.Thread(
                    target=self._run, args=(session, opening.channel, channel), name=name, daemon=True
                ).start()
                return
        channel.offer(delivery)

    def _count_channels(self, claim: str) -> int:
        return sum(len(one.channels) for one in self._sessions.values() if one.claim == claim)

    def counts(self) -> dict[str, Counts]:
        """Return what each claim has moved."""
        with self._changed:
            links = [
                (one.claim, channel.link)
                for one in self._sessions.values()
                for channel in one.channels.values()
                if channel.link is not None
            ]
            found = dict(self._past)
        for claim, link in links:
            found[claim] = _add(found.get(claim, Counts()), link, 1)
        return found

    def forget_counts(self, claim: str) -> None:
        """Forget a claim that has left the node."""
        with self._changed:
            self._past.pop(claim, None)

    def _find_session(self, opening: Opening) -> Session:
        key_digest = digest_of(opening.key)
        if opening.session is not None:
            with self._changed:
                known = self._sessions.get(opening.session)
            if known is None or known.claim != opening.claim or not hmac.compare_digest(known.key_digest, key_digest):
                raise Refused(NO_SESSION)
            return known
        if opening.ticket is None:
            raise Refused(NOT_VALID)
        digest, deadline = digest_of(opening.ticket), time.monotonic() + TICKET_SECONDS
        with self._changed:
            while (ticket := self._tickets.get(digest)) is None and (left := deadline - time.monotonic()) > 0:
                self._changed.wait(left)
            now = time.monotonic()
            fits = ticket is not None and ticket.until > now and ticket.claim == opening.claim
            if ticket is None or not fits or not hmac.compare_digest(ticket.key_digest, key_digest):
                # Whoever does not have its key has not used it.
                raise Refused(NOT_VALID)
            if sum(one.claim == ticket.claim for one in self._sessions.values()) >= MOST_SESSIONS:
                raise Refused(f"The claim has {MOST_SESSIONS} clients, as many as it may have.")
            del self._tickets[digest]
            # All clients of a claim share its rate; the newest ticket says it.
            pace = self._paces[ticket.claim] = Pace(ticket.bytes_per_second)
            session = Session(ticket.claim, key_digest, pace)
            self._sessions[session.uid] = session
        return session

    def _run(self, session: Session, uid: str, channel: Channel) -> None:
        """Serve a channel until it is over."""
        delivery: Delivery | None = channel.next.get()
        try:
            local = self._connect(session.claim)
        except Refused as error:
            with self._changed:
                session.channels.pop(uid, None)
            if delivery is not None:
                _refuse_quietly(delivery.stream, str(error))
            return
        link = channel.link = Link(local, session.pace)
        if channel.words:
            link.stop(channel.words)
        try:
            while delivery is not None and not _carry(link, session, delivery):
                delivery = _next(channel)
        finally:
            link.close()
            with self._changed:
                session.channels.pop(uid, None)
                self._past[session.claim] = _add(self._past.get(session.claim, Counts()), link, 0)


def digest_of(secret: str) -> str:
    """Return the SHA-256 by which a ticket or key is known."""
    return hashlib.sha256(secret.encode()).hexdigest()


def _carry(link: Link, session: Session, delivery: Delivery) -> bool:
    """Carry over one connection; return True once the stream is over."""
    try:
        handshake.answer(delivery.stream, Answer(session=session.uid, received=link.received))
        link.attach(delivery.stream, delivery.opening.received)
        return link.run()
    except OSError:
        return False
    except Broken as error:
        _refuse_quietly(delivery.stream, f"The stream cannot go on: {error}.")
        return True


def _next(channel: Channel) -> Delivery | None:
    """Return the connection with which the channel goes on; None if there is none within the grace."""
    try:
        return channel.next.get(timeout=GRACE_SECONDS)
    except queue.Empty:
        return None


def _add(counts: Counts, link: Link, channels: int) -> Counts:
    return Counts(
        counts.channels + channels,
        counts.received_bytes + link.received,
        counts.sent_bytes + link.taken,
        counts.turns + link.turns,
        link.trip_seconds if link.trip_seconds is not None else counts.trip_seconds,
    )


def _refuse_quietly(stream: ssl.SSLSocket, words: str) -> None:
    try:
        handshake.refuse(stream, words)
    except OSError:
        return
