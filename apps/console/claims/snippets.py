"""Commands to copy, with a claim's own values. The secret is never shown: the commands fetch it."""

from dataclasses import dataclass

from django.utils.translation import gettext as _

from apps.scheduling.models import Claim
from apps.scheduling.services.claims.launch_methods import INSTALLED, agent_command, launch_methods

# The page describes the other methods itself.
SHOWN_METHODS = ("cdi", "env-file", "systemd-run", "systemd-unit")


@dataclass(frozen=True, slots=True)
class Snippet:
    """A command to copy; `text` runs as it stands once GPUCLOUD_TOKEN is set."""

    title: str
    note: str
    text: str


def snippets(claim: Claim, *, server: str) -> list[Snippet]:
    """Return the commands that use, resize and release the claim without this page."""
    url = f"{server}/api/v1/claims/{claim.uid}/"
    auth = '-H "Authorization: Bearer $GPUCLOUD_TOKEN"'
    agent = next((agent_command(item.gpu.node) for item in claim.assignments.all()), INSTALLED)
    limit = min(100, claim.core_limit + 10) if claim.core_limit < 100 else claim.core_request
    return [
        Snippet(
            _("Run a program"),
            _("On the claim's node, where the agent is installed. The token stays out of the program."),
            f"export GPUCLOUD_URL={server} GPUCLOUD_TOKEN\n{agent} exec {claim.uid} -- python3 train.py",
        ),
        Snippet(
            _("Environment"),
            _("Export lines for a shell on the node, with the claim's secret; then agent exec needs no token."),
            f"eval \"$(curl -sS {auth} '{url}env/?as=sh')\"",
        ),
        Snippet(
            _("Resize by API"),
            _("Answers when the new limits are in force in the running process."),
            f"curl -sS -X PATCH {auth} -H 'Content-Type: application/json' \\\n"
            f"  -d '{{\"core_limit\": {limit}}}' '{url}?wait=10'",
        ),
        *_launch_snippets(claim),
        Snippet(_("Release by API"), _("Releases the claim."), f"curl -sS -X DELETE {auth} '{url}'"),
    ]


def _launch_snippets(claim: Claim) -> list[Snippet]:
    return [Snippet(way.title, way.note, way.line) for way in launch_methods(claim) if way.name in SHOWN_METHODS]
