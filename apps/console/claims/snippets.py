"""Commands to copy, with a claim's own values. The secret is never shown: the commands fetch it."""

from dataclasses import dataclass

from django.utils.translation import gettext as _

from apps.scheduling.models import Claim
from apps.scheduling.services.claims.launch_methods import launch_methods

# The page describes the other methods itself.
CONTAINERS = ("cdi", "env-file", "systemd-run", "systemd-unit")
PROGRAM = "python3 train.py"


@dataclass(frozen=True, slots=True)
class Snippet:
    """A command to copy; `text` runs as it stands."""

    title: str
    note: str
    text: str


def snippets(claim: Claim, *, server: str) -> list[tuple[str, list[Snippet]]]:
    """Return the commands that use, resize and release the claim without this page, by heading."""
    methods = {method.name: method for method in launch_methods(claim)}
    limit = min(100, claim.core_limit + 10) if claim.core_limit < 100 else claim.core_request
    resize = f"gpucloud claim resize {claim.uid} --limit {limit} --wait 10s"
    lines = {name: method.line.replace("COMMAND", PROGRAM) for name, method in methods.items()}
    commands = [
        # A MIG instance keeps its size.
        *(
            []
            if claim.has_fixed_size
            else [Snippet(_("Resize"), _("Waits until the program has the new limits."), resize)]
        ),
        Snippet(_("Release"), _("Ends its programs."), f"gpucloud claim release {claim.uid}"),
    ]
    if methods:
        on_node = _("On the claim's node, after `gpucloud login {0}`.").format(server)
        commands.insert(0, Snippet(methods["gpucloud"].title, on_node, lines["gpucloud"]))
        commands.append(
            Snippet(
                methods["exec"].title,
                _("On the claim's node, with GPUCLOUD_TOKEN set. The token stays out of the program."),
                f"export GPUCLOUD_URL={server} GPUCLOUD_TOKEN\n{lines['exec']}",
            )
        )
    containers = [Snippet(one.title, one.note, one.line) for name, one in methods.items() if name in CONTAINERS]
    return [
        (_("Commands"), commands),
        *([(_("Containers and services"), containers)] if containers else []),
        (_("API"), _api(claim, server, limit, placed=bool(methods))),
    ]


def _api(claim: Claim, server: str, limit: int, *, placed: bool) -> list[Snippet]:
    url = f"{server}/api/v1/claims/{claim.uid}/"
    auth = '-H "Authorization: Bearer $GPUCLOUD_TOKEN"'
    environment = Snippet(
        _("Environment"),
        _("Export lines for a shell on the node, with the claim's secret; then agent exec needs no token."),
        f"eval \"$(curl -sS {auth} '{url}env/?as=sh')\"",
    )
    resize = Snippet(
        _("Resize by API"),
        _("Answers when the new limits are in force in the running process."),
        f"curl -sS -X PATCH {auth} -H 'Content-Type: application/json' \\\n"
        f"  -d '{{\"core_limit\": {limit}}}' '{url}?wait=10'",
    )
    return [
        *([environment] if placed else []),
        *([] if claim.has_fixed_size else [resize]),
        Snippet(_("Release by API"), _("Releases the claim."), f"curl -sS -X DELETE {auth} '{url}'"),
    ]
