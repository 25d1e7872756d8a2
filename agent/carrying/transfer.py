"""The way of the images from one agent to another: TLS by a ticket, which is good for one transfer and a short time.

The receiving agent makes a key and a certificate for each ticket; the server, which both agents trust, gives address,
fingerprint and secret to the sending one. Neither side needs a certificate authority. Blocking calls: for a thread.
"""

import contextlib
import hashlib
import hmac
import json
import secrets
import shutil
import socket
import ssl
import threading
import time
from pathlib import Path
from typing import BinaryIO

import msgspec

from agent import pinned_tls, wire
from agent.carrying.images import MOST_FILES, NAME, Meta
from agent.pinned_tls import Failed as Failed  # noqa: PLC0414 - callers catch it here

LIFE_SECONDS = 600.0
# Without a byte for so long, the other side is given up.
SILENT_SECONDS = 30.0
CHUNK = 1 << 20
MOST_HEADER = 1 << 20
# What CRIU may write beside the memory that is carried, and the disk keeps for others.
MARGIN_BYTES = 1 << 30
ARRIVED = "arrived.json"
IMAGES = "images"


class Header(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The first words of the sender."""

    secret: str
    meta: Meta
    files: list[tuple[str, int]]


class Receiver:
    """One ticket: a port that takes the images of one claim into a directory, once."""

    def __init__(self, claim_uid: str, directory: Path, address: str) -> None:
        """Open the port. Raises OSError, or Failed without openssl."""
        self._claim_uid, self._directory = claim_uid, directory
        self._secret = secrets.token_urlsafe(32)
        self._until = time.monotonic() + LIFE_SECONDS
        shutil.rmtree(directory, ignore_errors=True)
        (directory / IMAGES).mkdir(parents=True, mode=0o700)
        identity = pinned_tls.make_identity()
        self._context = pinned_tls.server_context(identity)
        self._listener = pinned_tls.listen(address, backlog=4)
        self.ticket = wire.Ticket(
            host=address.rpartition(":")[0].strip("[]"),
            port=self._listener.getsockname()[1],
            fingerprint=identity.fingerprint,
            secret=self._secret,
        )
        threading.Thread(target=self._serve, name="carry", daemon=True).start()

    @property
    def is_over(self) -> bool:
        """True if the ticket takes nothing any more."""
        return self._listener.fileno() < 0

    def close(self) -> None:
        """Take nothing from now on."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _serve(self) -> None:
        try:
            while (left := self._until - time.monotonic()) > 0:
                self._listener.settimeout(left)
                connection, _ = self._listener.accept()
                # Whoever does not know the secret has not used it.
                with contextlib.suppress(OSError, Failed, ValueError, msgspec.MsgspecError), connection:
                    if self._take(connection):
                        return
        except OSError:
            return
        finally:
            self.close()

    def _take(self, connection: socket.socket) -> bool:
        """Take what comes over the connection; return whether it knew the secret."""
        connection.settimeout(SILENT_SECONDS)
        with self._context.wrap_socket(connection, server_side=True) as stream, stream.makefile("rb") as lines:
            header = msgspec.json.decode(lines.readline(MOST_HEADER), type=Header)
            if not hmac.compare_digest(header.secret, self._secret):
                return False
            self.close()
            words = self._refuse(header)
            stream.sendall(json.dumps({"refused": words}).encode() + b"\n")
            if words is None:
                digest = hashlib.sha256()
                for name, size in header.files:
                    self._take_file(lines, name, size, digest)
                if not hmac.compare_digest(lines.readline(100).strip().decode(), digest.hexdigest()):
                    raise Failed("The checksum is another one.")
                (self._directory / ARRIVED).write_bytes(msgspec.json.encode(header.meta))
                stream.sendall(json.dumps({"stored": digest.hexdigest()}).encode() + b"\n")
            return True

    def _refuse(self, header: Header) -> str | None:
        if header.meta.claim_uid != self._claim_uid:
            return "They are another claim's programs."
        names = [name for name, _ in header.files]
        if len(names) > MOST_FILES or len(set(names)) < len(names) or not all(map(NAME.fullmatch, names)):
            return "They are not the images of one dump."
        total = sum(max(0, size) for _, size in header.files)
        free = shutil.disk_usage(self._directory).free - MARGIN_BYTES
        if total > free or any(size < 0 for _, size in header.files):
            return f"The images have {total >> 20} MiB, and {max(0, free) >> 20} MiB are free in {self._directory}."
        return None

    def _take_file(self, lines: BinaryIO, name: str, size: int, digest: "hashlib._Hash") -> None:
        with (self._directory / IMAGES / name).open("xb") as file:
            while size:
                part = lines.read(min(size, CHUNK))
                if not part:
                    raise Failed("The stream ended early.")
                digest.update(part)
                file.write(part)
                size -= len(part)


def send(ticket: wire.Ticket, directory: Path, meta: Meta) -> None:
    """Send the directory's images; return once the other side has stored them all. Raises Failed."""
    paths = sorted(path for path in directory.iterdir() if NAME.fullmatch(path.name))
    files = [(path.name, path.stat().st_size) for path in paths]
    header = msgspec.json.encode(Header(ticket.secret, meta, files)) + b"\n"
    try:
        with (
            socket.create_connection((ticket.host, ticket.port), timeout=SILENT_SECONDS) as connection,
            pinned_tls.client_context().wrap_socket(connection) as stream,
            stream.makefile("rb") as answers,
        ):
            pinned_tls.require(stream, ticket.fingerprint, "Another machine answers at the new node's address.")
            stream.sendall(header)
            answer = json.loads(answers.readline(CHUNK) or b"{}")
            if answer.get("refused", "It closed the connection.") is not None:
                raise Failed(str(answer.get("refused", "The new node closed the connection.")))
            digest = hashlib.sha256()
            for path, (_, size) in zip(paths, files, strict=True):
                _send_file(stream, path, size, digest)
            stream.sendall(digest.hexdigest().encode() + b"\n")
            if json.loads(answers.readline(CHUNK) or b"{}").get("stored") != digest.hexdigest():
                raise Failed("The new node did not confirm what it got.")
    except (OSError, ValueError) as error:
        raise Failed(f"The images did not reach the new node: {error}.") from error


def _send_file(stream: ssl.SSLSocket, path: Path, size: int, digest: "hashlib._Hash") -> None:
    with path.open("rb") as file:
        while size and (part := file.read(min(size, CHUNK))):
            digest.update(part)
            stream.sendall(part)
            size -= len(part)
    if size:
        raise Failed(f"{path.name} became shorter.")
