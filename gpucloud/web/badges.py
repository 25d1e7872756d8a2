"""How a state looks: a word, an icon and a tone, never a colour alone."""

from dataclasses import dataclass
from typing import Final, Literal

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

Tone = Literal["good", "busy", "warn", "bad", "quiet"]


@dataclass(frozen=True, slots=True)
class Look:
    """`icon` names a symbol of the sprite, `tone` a class of the style sheet."""

    word: Promise | str
    icon: str
    tone: Tone


LOOKS: Final = {
    # Of claims and of assignments.
    "pending": Look(_("Pending"), "hourglass", "busy"),
    "queued": Look(_("Queued"), "clock", "warn"),
    "assigned": Look(_("Assigned"), "loader-2", "busy"),
    "active": Look(_("Active"), "circle-check", "good"),
    "suspended": Look(_("Suspended"), "player-pause", "quiet"),
    "releasing": Look(_("Releasing"), "arrow-back-up", "busy"),
    "released": Look(_("Released"), "circle-dashed", "quiet"),
    "failed": Look(_("Failed"), "circle-x", "bad"),
    "in_force": Look(_("In force"), "circle-check", "good"),
    "over_limit": Look(_("Over its limit"), "alert-triangle", "bad"),
    # Of reservations.
    "booked": Look(_("Booked"), "calendar", "busy"),
    "unclaimed": Look(_("Nobody claims"), "alert-triangle", "warn"),
    "idle": Look(_("Idle"), "player-pause", "warn"),
    "waits": Look(_("Could not begin"), "clock", "warn"),
    # Of proposals.
    "proposed": Look(_("Proposed"), "hourglass", "warn"),
    "applied": Look(_("Applied"), "circle-check", "good"),
    "dismissed": Look(_("Dismissed"), "x", "quiet"),
    "expired": Look(_("Expired"), "clock", "quiet"),
    # Of requests.
    "open": Look(_("Open"), "hourglass", "warn"),
    "countered": Look(_("Countered"), "arrow-back-up", "busy"),
    "approved": Look(_("Approved"), "circle-check", "good"),
    "denied": Look(_("Denied"), "circle-x", "bad"),
    "withdrawn": Look(_("Withdrawn"), "x", "quiet"),
    "lapsed": Look(_("Lapsed"), "clock", "quiet"),
    # Of nodes.
    "ready": Look(_("Ready"), "circle-check", "good"),
    "cordoned": Look(_("Cordoned"), "ban", "warn"),
    "fenced": Look(_("Fenced"), "ban", "bad"),
    "unhealthy": Look(_("Unhealthy"), "alert-triangle", "bad"),
    "lost": Look(_("Lost"), "plug-connected-x", "bad"),
    "awaiting-agent": Look(_("Awaiting its agent"), "hourglass", "warn"),
    # Of clusters.
    "connected": Look(_("Connected"), "circle-check", "good"),
    "unreachable": Look(_("Unreachable"), "plug-connected-x", "bad"),
    "waiting": Look(_("Not looked at yet"), "hourglass", "warn"),
    "disabled": Look(_("Not watched"), "player-pause", "quiet"),
    "in-step": Look(_("In step"), "circle-check", "good"),
    "drifted": Look(_("Differs"), "alert-triangle", "warn"),
    # Of what an import finds.
    "would-be-made": Look(_("Would be made"), "hourglass", "busy"),
    "made": Look(_("Made"), "circle-check", "good"),
    "there": Look(_("There already"), "circle-dashed", "quiet"),
    "left": Look(_("Left"), "alert-triangle", "warn"),
    # Of tokens.
    "works": Look(_("Works"), "circle-check", "good"),
    "ends-soon": Look(_("Ends soon"), "hourglass", "warn"),
    "maker-left": Look(_("Refused: its maker has left"), "ban", "bad"),
    "revoked": Look(_("Revoked"), "ban", "quiet"),
    # Of webhooks, and of what is sent to them.
    "on": Look(_("On"), "circle-check", "good"),
    "failing": Look(_("Failing"), "alert-triangle", "warn"),
    "stopped": Look(_("Stopped"), "circle-x", "bad"),
    "off": Look(_("Off"), "player-pause", "quiet"),
    "delivered": Look(_("Delivered"), "circle-check", "good"),
    # Of conditions.
    "True": Look(_("True"), "circle-check", "good"),
    "False": Look(_("False"), "alert-triangle", "bad"),
    "Unknown": Look(_("Unknown"), "hourglass", "warn"),
}


def look(state: str) -> Look:
    """The look of a state; an unknown one shows its own name."""
    return LOOKS.get(state) or Look(state.replace("_", " ").capitalize(), "circle-dashed", "quiet")
