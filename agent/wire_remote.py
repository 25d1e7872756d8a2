"""Remote shares in the frames of both sides: programs on other machines that use a claim of the node."""

from typing import Annotated

import msgspec
from msgspec import Meta

from agent.wire_frames import Count, Digest, Frame, Record, Uid

# Of a ticket, from the server's word to its use.
MOST_TICKET_SECONDS = 600


class RemoteEndpoint(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The port at which clients reach the node, by its certificate's fingerprint, and the component that it serves."""

    host: Annotated[str, Meta(min_length=1, max_length=253)]
    port: Annotated[int, Meta(ge=1, le=65535)]
    fingerprint: Digest
    component: Annotated[str, Meta(pattern=r"^[a-z][a-z0-9-]{0,30}$")]
    # The first digits of the SHA-256 of the component's server.
    build: Annotated[str, Meta(pattern=r"^[0-9a-f]{12}$")]


class RemoteTicket(Frame, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """Server → agent, if its hello says `remote`: let one client use a claim from another machine.

    Ticket and key are known by their SHA-256: who reads this frame can use neither.
    """

    claim_uid: Uid
    ticket: Digest
    key: Digest
    seconds: Annotated[int, Meta(ge=1, le=MOST_TICKET_SECONDS)]
    # The tenant's number, from which the user is derived as which the remoting server runs.
    owner: Count
    # Of all clients of the claim together, both ways; 0: no bound.
    bytes_per_second: Annotated[int, Meta(ge=0, le=2**53)] = 0


class RemoteUse(Record, frozen=True, kw_only=True, gc=False):
    """The network use of a claim's clients on other machines: sums on this node, and rates of the last second."""

    connections: Count
    # From the clients to the node, and back.
    received_bytes: Annotated[int, Meta(ge=0, le=2**63 - 1)]
    sent_bytes: Annotated[int, Meta(ge=0, le=2**63 - 1)]
    # Requests that waited for an answer, about.
    round_trips: Annotated[int, Meta(ge=0, le=2**63 - 1)]
    received_bytes_per_second: Annotated[float, Meta(ge=0, le=1e12)]
    sent_bytes_per_second: Annotated[float, Meta(ge=0, le=1e12)]
    round_trips_per_second: Annotated[float, Meta(ge=0, le=1e9)]
    # Between node and client, there and back; None: not measured yet.
    trip_ms: Annotated[float, Meta(ge=0, le=1e7)] | None = None
