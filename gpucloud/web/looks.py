"""How a state looks: a word, an icon and a tone, never a colour alone."""

from dataclasses import dataclass
from typing import Final, Literal

Tone = Literal["good", "busy", "warn", "bad", "quiet"]


@dataclass(frozen=True, slots=True)
class Look:
    """`icon` names a symbol of the sprite, `tone` a class of the style sheet."""

    word: str
    icon: str
    tone: Tone


LOOKS: Final = {
    # Of claims and of assignments.
    "pending": Look("Pending", "hourglass", "busy"),
    "queued": Look("Queued", "clock", "warn"),
    "assigned": Look("Assigned", "loader-2", "busy"),
    "active": Look("Active", "circle-check", "good"),
    "suspended": Look("Suspended", "player-pause", "quiet"),
    "releasing": Look("Releasing", "arrow-back-up", "busy"),
    "released": Look("Released", "circle-dashed", "quiet"),
    "failed": Look("Failed", "circle-x", "bad"),
    "in_force": Look("In force", "circle-check", "good"),
    "over_limit": Look("Over its limit", "alert-triangle", "bad"),
    # Of reservations.
    "booked": Look("Booked", "calendar", "busy"),
    "unclaimed": Look("Nobody claims", "alert-triangle", "warn"),
    "idle": Look("Idle", "player-pause", "warn"),
    "waits": Look("Could not begin", "clock", "warn"),
    # Of proposals.
    "proposed": Look("Proposed", "hourglass", "warn"),
    "applied": Look("Applied", "circle-check", "good"),
    "dismissed": Look("Dismissed", "x", "quiet"),
    "expired": Look("Expired", "clock", "quiet"),
    # Of nodes.
    "ready": Look("Ready", "circle-check", "good"),
    "cordoned": Look("Cordoned", "ban", "warn"),
    "fenced": Look("Fenced", "ban", "bad"),
    "unhealthy": Look("Unhealthy", "alert-triangle", "bad"),
    "lost": Look("Lost", "plug-connected-x", "bad"),
    "awaiting-agent": Look("Awaiting its agent", "hourglass", "warn"),
    # Of clusters.
    "connected": Look("Connected", "circle-check", "good"),
    "unreachable": Look("Unreachable", "plug-connected-x", "bad"),
    "waiting": Look("Not looked at yet", "hourglass", "warn"),
    "disabled": Look("Not watched", "player-pause", "quiet"),
    "in-step": Look("In step", "circle-check", "good"),
    "drifted": Look("Differs", "alert-triangle", "warn"),
    # Of what an import finds.
    "would-be-made": Look("Would be made", "hourglass", "busy"),
    "made": Look("Made", "circle-check", "good"),
    "there": Look("There already", "circle-dashed", "quiet"),
    "left": Look("Left", "alert-triangle", "warn"),
    # Of conditions.
    "True": Look("True", "circle-check", "good"),
    "False": Look("False", "alert-triangle", "bad"),
    "Unknown": Look("Unknown", "hourglass", "warn"),
}


def look(state: str) -> Look:
    """The look of a state; an unknown one shows its own name."""
    return LOOKS.get(state) or Look(state.replace("_", " ").capitalize(), "circle-dashed", "quiet")
