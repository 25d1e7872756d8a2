"""A byte stream that outlives its connections: counted, confirmed, and sent again after a loss.

Each end carries bytes between a local socket and a TLS connection to the other end. It keeps what the other end has
not confirmed, up to WINDOW_BYTES. When a connection is lost, the calling end makes another one, both say how much they
have received, and go on from there. On a connection, each frame is a kind, a length and so many bytes.

This file is the same in `agent/remote/` and in `gpucloud_cli/`, of which neither imports the other. Standard library
only. Blocking: each link has a thread.
"""

import contextlib
import select
import socket
import ssl
import struct
import threading
import time
from collections import deque

HEAD = struct.Struct("!BI")
TOTAL = struct.Struct("!Q")
DATA, CONFIRM, END, WHY, PING, PONG = range(6)
CHUNK_BYTES = 256 << 10
WINDOW_BYTES = 64 << 20
# The most that one record of TLS carries.
RECORD_BYTES = 16 << 10
# Received bytes that are not confirmed yet: few enough for the window, many enough to cost nothing.
CONFIRM_BYTES = 4 << 20
# Bytes on their way to a socket that does not take them; then no more are read.
MOST_WAITING_BYTES = 4 << 20
MOST_WORDS_BYTES = 2000
PING_SECONDS = 1.0
# A connection without a sign of life for so long is lost: a cable was pulled, or a machine is gone.
SILENT_SECONDS = 4.0
# After it has moved bytes, a link asks for more without sleeping for so long: the sleep and the wake of an idle virtual
# processor take 150 us, each way at each end, and a program that waits for its GPU asks again at once.
SPIN_SECONDS = 0.0002
# The other end may read what was sent last before the connection closes.
LINGER_SECONDS = 1.0


class Broken(Exception):
    """The other end does not keep to the protocol; the link cannot go on."""


class Pace:
    """A rate in bytes a second that links share: a token bucket. 0: no bound."""

    def __init__(self, bytes_per_second: int) -> None:
        self._rate = bytes_per_second
        # A twentieth of a second at once: short bursts pass, and a long one does not delay the others.
        self._most = max(bytes_per_second / 20, CHUNK_BYTES)
        self._left, self._at, self._lock = self._most, time.monotonic(), threading.Lock()

    def wait_seconds(self) -> float:
        """Return for how long nothing may be moved; 0 if something may."""
        if not self._rate:
            return 0.0
        with self._lock:
            now = time.monotonic()
            self._left = min(self._most, self._left + (now - self._at) * self._rate)
            self._at = now
            return max(0.0, -self._left / self._rate)

    def spend(self, count: int) -> None:
        """Count moved bytes."""
        if self._rate:
            with self._lock:
                self._left -= count


class Link:
    """One end of a stream. `run` and `attach` are its thread's; `stop` and `interrupt` anybody's."""

    def __init__(self, local: socket.socket, pace: Pace | None = None) -> None:
        local.setblocking(False)
        self._local, self._pace = local, pace or Pace(0)
        self._stream: ssl.SSLSocket | None = None
        # Bytes that have come from the other end, and from the local socket; of those the confirmed ones.
        self.received = self.taken = self.confirmed = 0
        # Changes of direction: from what the local program sends to what comes back.
        self.turns, self._was_sending = 0, False
        self.trip_seconds: float | None = None
        self._unconfirmed: deque[bytes] = deque()
        self._to_local: deque[memoryview] = deque()
        self._waiting_bytes = 0
        self._out: deque[memoryview] = deque()
        self._out_bytes = 0
        self._inbox, self._left, self._reported = bytearray(), 0, 0
        self._local_over = self._peer_over = self._shut = False
        self._stop_words: str | None = None
        self._interrupted = False
        # The reason in words why the other end has ended it; empty: it has not, or there was none.
        self.why = ""
        self._heard_at = self._pinged_at = 0.0
        # What the kernel has said can be read: asking it again costs more than a program's small request does.
        self._can_read_local = self._can_read_stream = False

    @property
    def local_ended(self) -> bool:
        """True if the local program has closed its socket."""
        return self._local_over

    @property
    def is_over(self) -> bool:
        """True if both sides have ended, and everything has arrived."""
        return self._local_over and self._peer_over and not self._to_local and not self._out_bytes

    def stop(self, words: str) -> None:
        """End the stream within a second, and tell the other end why."""
        self._stop_words = words[:MOST_WORDS_BYTES]

    def interrupt(self) -> None:
        """Have `run` return because there is another connection."""
        self._interrupted = True
        if (stream := self._stream) is not None:
            with contextlib.suppress(OSError):
                socket.socket.shutdown(stream, socket.SHUT_RDWR)

    def attach(self, stream: ssl.SSLSocket, received: int) -> None:
        """Go on over this connection; the other end has received so many bytes. Raises Broken."""
        self._confirm(received)
        self._stream, self._interrupted = stream, False
        stream.setblocking(False)
        self._out, self._out_bytes, self._inbox, self._left = deque(), 0, bytearray(), 0
        self._reported, self._heard_at = self.received, time.monotonic()
        self._can_read_local = self._can_read_stream = True
        for data in self._unconfirmed:
            self._send(DATA, data)
        if self._local_over:
            self._send(END)

    def run(self) -> bool:
        """Carry bytes; return True once the stream is over, False when the connection is lost. Raises Broken."""
        assert self._stream is not None
        poller, masks, spins_until = select.poll(), (0, 0), 0.0
        try:
            while True:
                self._tick()
                while self._move():
                    spins_until = time.monotonic() + SPIN_SECONDS
                if self.is_over:
                    self._linger()
                    return True
                masks = self._register(poller, masks)
                seconds = min(PING_SECONDS, self._pace.wait_seconds() or PING_SECONDS)
                milliseconds = 0.0 if time.monotonic() < spins_until else max(1.0, seconds * 1000)
                for descriptor, event in poller.poll(milliseconds):
                    is_local = descriptor == self._local.fileno()
                    self._can_read_local |= is_local and event != select.POLLOUT
                    self._can_read_stream |= not is_local and event != select.POLLOUT
        except (OSError, EOFError):
            return self.is_over
        finally:
            with contextlib.suppress(OSError):
                self._stream.close()

    def close(self) -> None:
        """Close the local socket."""
        with contextlib.suppress(OSError):
            self._local.close()

    def _tick(self) -> None:
        """Ping, notice silence, and say why it ends. Raises OSError."""
        now = time.monotonic()
        if self._interrupted:
            raise OSError("another connection took over")
        if self._stop_words is not None and not self.is_over:
            self._send(WHY, self._stop_words.encode())
            self._end_all()
        if now - self._heard_at > SILENT_SECONDS:
            raise OSError("silent")
        if now - self._pinged_at >= PING_SECONDS and not self._out_bytes:
            self._pinged_at = now
            self._send(PING, TOTAL.pack(time.monotonic_ns()))

    def _end_all(self) -> None:
        self._local_over = self._peer_over = True
        self._to_local.clear()
        self._waiting_bytes = 0
        with contextlib.suppress(OSError):
            self._local.shutdown(socket.SHUT_RDWR)

    def _linger(self) -> None:
        """Let the other end read the last bytes."""
        assert self._stream is not None
        with contextlib.suppress(OSError):
            socket.socket.shutdown(self._stream, socket.SHUT_WR)
            self._stream.settimeout(LINGER_SECONDS)
            while self._stream.recv(CHUNK_BYTES):
                pass

    def _register(self, poller: "select.poll", before: tuple[int, int]) -> tuple[int, int]:
        """Have the poller wait for what can go on."""
        assert self._stream is not None
        may_move = not self._pace.wait_seconds()
        local = select.POLLIN if self._may_read_local and may_move else 0
        local |= select.POLLOUT if self._to_local else 0
        stream = select.POLLIN if self._waiting_bytes < MOST_WAITING_BYTES and may_move else 0
        stream |= select.POLLOUT if self._out else 0
        for place, old, new in ((self._local, before[0], local), (self._stream, before[1], stream)):
            if old != new:
                # With no event at all, a closed socket would wake the poller without end.
                if new:
                    poller.register(place, new)
                else:
                    poller.unregister(place)
        return local, stream

    @property
    def _may_read_local(self) -> bool:
        return (
            not self._local_over and self.taken - self.confirmed < WINDOW_BYTES and self._out_bytes < MOST_WAITING_BYTES
        )

    def _move(self) -> bool:
        """Move what can be moved now; return False if nothing could. Raises OSError, EOFError, Broken."""
        moved = False
        if not self._pace.wait_seconds():
            if self._can_read_stream and self._waiting_bytes < MOST_WAITING_BYTES:
                moved |= self._read_stream()
            if self._to_local:
                moved |= self._write_local()
            if self._can_read_local and self._may_read_local:
                moved |= self._read_local()
        elif self._to_local:
            moved |= self._write_local()
        if self._peer_over and not self._to_local and not self._shut:
            self._shut = True
            with contextlib.suppress(OSError):
                self._local.shutdown(socket.SHUT_WR)
        if self._out:
            moved |= self._write_stream()
        return moved

    def _read_local(self) -> bool:
        try:
            data = self._local.recv(CHUNK_BYTES)
        except BlockingIOError:
            self._can_read_local = False
            return False
        except OSError:
            data = b""
        self._can_read_local = len(data) == CHUNK_BYTES
        if data:
            self.taken += len(data)
            self._was_sending = True
            self._unconfirmed.append(data)
            self._send(DATA, data)
            self._pace.spend(len(data))
        else:
            self._local_over = True
            self._send(END)
        return True

    def _write_local(self) -> bool:
        try:
            count = self._local.send(self._to_local[0])
        except BlockingIOError:
            return False
        except OSError:
            # The program is gone: what comes for it is dropped, its end is noticed by the reading side.
            count = len(self._to_local[0])
        self._waiting_bytes -= count
        if count == len(self._to_local[0]):
            self._to_local.popleft()
        else:
            self._to_local[0] = self._to_local[0][count:]
        return True

    def _write_stream(self) -> bool:
        assert self._stream is not None
        try:
            count = self._stream.send(self._out[0])
        except (ssl.SSLWantWriteError, ssl.SSLWantReadError):
            return False
        self._out_bytes -= count
        if count == len(self._out[0]):
            self._out.popleft()
        else:
            self._out[0] = self._out[0][count:]
        return True

    def _read_stream(self) -> bool:
        assert self._stream is not None
        try:
            data = self._stream.recv(CHUNK_BYTES)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            self._can_read_stream = False
            return False
        if not data:
            raise EOFError
        # A full record is likely not the last one.
        self._can_read_stream = len(data) >= RECORD_BYTES or bool(self._stream.pending())
        self._heard_at = time.monotonic()
        self._take(data)
        return True

    def _take(self, data: bytes) -> None:
        """Take bytes of the connection: frames, and parts of them. Raises Broken."""
        view = memoryview(data)
        while view:
            if self._left:
                part, view = view[: self._left], view[self._left :]
                self._left -= len(part)
                self._deliver(part)
                continue
            self._inbox += view
            if len(self._inbox) < HEAD.size:
                return
            kind, length = HEAD.unpack_from(self._inbox)
            if kind == DATA:
                view, self._left = memoryview(bytes(self._inbox[HEAD.size :])), length
                self._inbox = bytearray()
                continue
            if length > MOST_WORDS_BYTES or kind > PONG:
                raise Broken("no frame of this protocol")
            end = HEAD.size + length
            if len(self._inbox) < end:
                return
            payload, rest = bytes(self._inbox[HEAD.size : end]), bytes(self._inbox[end:])
            self._inbox, view = bytearray(), memoryview(rest)
            self._handle(kind, payload)

    def _deliver(self, part: memoryview) -> None:
        self.received += len(part)
        self._pace.spend(len(part))
        if self._was_sending:
            self._was_sending = False
            self.turns += 1
        if not self._local_over or not self._shut:
            self._to_local.append(part)
            self._waiting_bytes += len(part)
        if self.received - self._reported >= CONFIRM_BYTES:
            self._reported = self.received
            self._send(CONFIRM, TOTAL.pack(self.received))

    def _handle(self, kind: int, payload: bytes) -> None:
        try:
            if kind == CONFIRM:
                self._confirm(TOTAL.unpack(payload)[0])
            elif kind == PING:
                # The answer confirms, too: a quiet stream keeps nothing.
                self._reported = self.received
                self._send(CONFIRM, TOTAL.pack(self.received))
                self._send(PONG, payload)
            elif kind == PONG:
                self.trip_seconds = (time.monotonic_ns() - TOTAL.unpack(payload)[0]) / 1e9
            elif kind == END:
                self._peer_over = True
            else:
                self.why = payload.decode(errors="replace")
                self._end_all()
        except struct.error as error:
            raise Broken("no number in a frame") from error

    def _confirm(self, total: int) -> None:
        if not self.confirmed <= total <= self.taken:
            raise Broken("confirmed what was not sent")
        left = total - self.confirmed
        self.confirmed = total
        while left:
            first = self._unconfirmed[0]
            if len(first) > left:
                self._unconfirmed[0] = first[left:]
                return
            left -= len(self._unconfirmed.popleft())

    def _send(self, kind: int, payload: bytes = b"") -> None:
        frame = memoryview(HEAD.pack(kind, len(payload)) + payload)
        self._out.append(frame)
        self._out_bytes += len(frame)
