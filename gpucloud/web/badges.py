"""Badges of states: a label, an icon and a tone, so that no state is shown by colour alone."""

from dataclasses import dataclass
from typing import Final, Literal

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

Tone = Literal["good", "busy", "warn", "bad", "quiet"]


@dataclass(frozen=True, slots=True)
class Badge:
    """A state as pages show it: `icon` names a symbol of the sprite, `tone` a class of the style sheet."""

    label: Promise | str
    icon: str
    tone: Tone


BADGES: Final = {
    # Claims and assignments.
    "pending": Badge(_("Pending"), "hourglass", "busy"),
    "allocating": Badge(_("Allocating"), "hourglass", "busy"),
    "queued": Badge(_("Queued"), "clock", "warn"),
    "assigned": Badge(_("Assigned"), "loader-2", "busy"),
    "active": Badge(_("Active"), "circle-check", "good"),
    "suspending": Badge(_("Suspending"), "player-pause", "busy"),
    "suspended": Badge(_("Suspended"), "player-pause", "quiet"),
    "resuming": Badge(_("Resuming"), "refresh", "busy"),
    "releasing": Badge(_("Releasing"), "arrow-back-up", "busy"),
    "released": Badge(_("Released"), "circle-dashed", "quiet"),
    "failed": Badge(_("Failed"), "circle-x", "bad"),
    "unknown": Badge(_("Unknown"), "plug-connected-x", "bad"),
    "in_force": Badge(_("Applied"), "circle-check", "good"),
    "over_limit": Badge(_("Over its limit"), "alert-triangle", "bad"),
    # Jobs; one whose claim waits is `queued`, a failed one `failed`.
    "job-waiting": Badge(_("Waiting"), "hourglass", "quiet"),
    "running": Badge(_("Running"), "loader-2", "busy"),
    "succeeded": Badge(_("Succeeded"), "circle-check", "good"),
    "job-stopped": Badge(_("Stopped"), "x", "quiet"),
    # Reservations.
    "booked": Badge(_("Booked"), "calendar", "busy"),
    "unclaimed": Badge(_("Nobody claims"), "alert-triangle", "warn"),
    "idle": Badge(_("Idle"), "player-pause", "warn"),
    "waits": Badge(_("Could not begin"), "clock", "warn"),
    # Proposals.
    "proposed": Badge(_("Proposed"), "hourglass", "warn"),
    "applied": Badge(_("Applied"), "circle-check", "good"),
    "dismissed": Badge(_("Dismissed"), "x", "quiet"),
    "expired": Badge(_("Expired"), "clock", "quiet"),
    # Requests.
    "requested": Badge(_("With the tenant’s admins"), "hourglass", "warn"),
    "open": Badge(_("Open"), "hourglass", "warn"),
    "countered": Badge(_("Countered"), "arrow-back-up", "busy"),
    "approved": Badge(_("Approved"), "circle-check", "good"),
    "denied": Badge(_("Denied"), "circle-x", "bad"),
    "withdrawn": Badge(_("Withdrawn"), "x", "quiet"),
    "lapsed": Badge(_("Lapsed"), "clock", "quiet"),
    # Nodes.
    "ready": Badge(_("Ready"), "circle-check", "good"),
    "draining": Badge(_("Draining"), "arrow-back-up", "warn"),
    "cordoned": Badge(_("Cordoned"), "ban", "warn"),
    "fenced": Badge(_("Fenced"), "ban", "bad"),
    "returning": Badge(_("Returning"), "hourglass", "warn"),
    "unhealthy": Badge(_("Unhealthy"), "alert-triangle", "bad"),
    "lost": Badge(_("Lost"), "plug-connected-x", "bad"),
    "awaiting-agent": Badge(_("Awaiting its agent"), "hourglass", "warn"),
    # Clusters.
    "connected": Badge(_("Connected"), "circle-check", "good"),
    "unreachable": Badge(_("Unreachable"), "plug-connected-x", "bad"),
    "waiting": Badge(_("Not checked yet"), "hourglass", "warn"),
    "disabled": Badge(_("Not watched"), "player-pause", "quiet"),
    "in-step": Badge(_("In step"), "circle-check", "good"),
    "drifted": Badge(_("Differs"), "alert-triangle", "warn"),
    # Results of an import.
    "would-be-made": Badge(_("Would be made"), "hourglass", "busy"),
    "made": Badge(_("Created"), "circle-check", "good"),
    "there": Badge(_("There already"), "circle-dashed", "quiet"),
    "left": Badge(_("Left"), "alert-triangle", "warn"),
    "missing": Badge(_("Missing"), "plug-connected-x", "bad"),
    # Results of actions on selected rows.
    "would-change": Badge(_("Would change"), "hourglass", "busy"),
    "done": Badge(_("Done"), "circle-check", "good"),
    "refused": Badge(_("Refused"), "circle-x", "bad"),
    # Tokens.
    "works": Badge(_("Works"), "circle-check", "good"),
    "ends-soon": Badge(_("Ends soon"), "hourglass", "warn"),
    "maker-left": Badge(_("Refused: its maker has left"), "ban", "bad"),
    "revoked": Badge(_("Revoked"), "ban", "quiet"),
    # Webhooks and their deliveries.
    "on": Badge(_("On"), "circle-check", "good"),
    "failing": Badge(_("Failing"), "alert-triangle", "warn"),
    "stopped": Badge(_("Stopped"), "circle-x", "bad"),
    "off": Badge(_("Off"), "player-pause", "quiet"),
    "delivered": Badge(_("Delivered"), "circle-check", "good"),
    # Conditions.
    "True": Badge(_("True"), "circle-check", "good"),
    "False": Badge(_("False"), "alert-triangle", "bad"),
    "Unknown": Badge(_("Unknown"), "hourglass", "warn"),
}


def badge(state: str) -> Badge:
    """Return the badge of a state; an unknown state shows its own name."""
    return BADGES.get(state) or Badge(state.replace("_", " ").capitalize(), "circle-dashed", "quiet")
