"""The agent's identity: its own secret, made here and sent in clear only to the server that knows its digest.

The secret is on the disk before the server first receives its digest. If the answer to the enrolment is lost, the same
digest is presented again with the same one-time token, and the server answers the same.
"""

import hashlib
import secrets
from pathlib import Path

import msgspec

from agent import statefile


class Identity(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of `<state dir>/agent.json`."""

    secret: str
    # None until the server has answered the enrolment.
    node_uid: str | None = None
    node_name: str | None = None

    @property
    def key_digest(self) -> str:
        """SHA-256 of the secret, in hex: all that the server stores."""
        return hashlib.sha256(self.secret.encode()).hexdigest()

    @property
    def credential(self) -> str:
        """The bearer token of the websocket; only after enrolment."""
        return f"gpn_{self.node_uid}.{self.secret}"


def load(state_dir: Path) -> Identity | None:
    """Return the identity on disk, enrolled or not; None before the first start. Raises statefile.Damaged."""
    return statefile.read(state_dir / "agent.json", Identity)


def create(state_dir: Path) -> Identity:
    """Create an identity, on the disk before this returns."""
    fresh = Identity(secret=secrets.token_urlsafe(32))
    save(state_dir, fresh)
    return fresh


def save(state_dir: Path, identity: Identity) -> None:
    """Write the identity to the disk, readable by its owner only."""
    statefile.write(state_dir / "agent.json", identity, durable=True)
