"""Running programs that go from one node to another, in the frames of both sides."""

from typing import Annotated

import msgspec
from msgspec import Meta


class Ticket(msgspec.Struct, frozen=True, kw_only=True):
    """The permission to send a claim's programs to a node, once (`agent.carrying.transfer`)."""

    host: Annotated[str, Meta(max_length=253)]
    port: Annotated[int, Meta(ge=1, le=65535)]
    # SHA-256 of the certificate, in hexadecimal digits.
    fingerprint: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$")]
    secret: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{20,100}$")]


class Carry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The claim's running programs go from one node to another one."""

    # On the old node: where they go. None: this is the new one, which offers a ticket.
    ticket: Ticket | None = None
