"""The first line of a client's connection to a node, and its answer."""

import socket
import ssl
from typing import Annotated

import msgspec
from msgspec import Meta

VERSION = 1
MOST_LINE_BYTES = 2000
Word = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{16,100}$")]


class Opening(msgspec.Struct, frozen=True, omit_defaults=True):
    """The client's line. The first connection has the ticket, later ones have the session that it opened."""

    v: int
    claim: Annotated[str, Meta(max_length=36)]
    key: Word
    # A stream of the client; one that is known goes on.
    channel: Word
    received: Annotated[int, Meta(ge=0, le=2**63 - 1)] = 0
    ticket: Word | None = None
    session: Word | None = None


class Answer(msgspec.Struct, frozen=True, omit_defaults=True):
    """The node's line."""

    session: str = ""
    received: int = 0
    # Why it is refused, in words.
    refused: str = ""


class Refused(Exception):
    """An opening that is refused; the message is for the client."""


def read(stream: ssl.SSLSocket) -> Opening:
    """Read the opening. Raises Refused, OSError."""
    line = bytearray()
    while not line.endswith(b"\n"):
        # What follows the line belongs to the stream.
        byte = stream.recv(1)
        if not byte or len(line) > MOST_LINE_BYTES:
            raise Refused("The connection does not begin as it must.")
        line += byte
    try:
        opening = msgspec.json.decode(line, type=Opening)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise Refused("The connection does not begin as it must.") from error
    if opening.v != VERSION:
        raise Refused(f"The node's agent speaks version {VERSION} of the protocol: upgrade the older one of both.")
    return opening


def answer(stream: ssl.SSLSocket, made: Answer) -> None:
    """Send the answer. Raises OSError."""
    stream.sendall(msgspec.json.encode(made) + b"\n")


def refuse(stream: ssl.SSLSocket, words: str) -> None:
    """Send a refusal and close. Raises OSError."""
    with stream:
        answer(stream, Answer(refused=words))
        socket.socket.shutdown(stream, socket.SHUT_WR)
