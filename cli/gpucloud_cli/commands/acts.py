"""Commands that ask for one thing about one object, such as `node forget` and `proposal accept`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import click

from gpucloud_cli.addressing import find_claim
from gpucloud_cli.fields import body_fields, has_preview
from gpucloud_cli.nouns import WORDING
from gpucloud_cli.options import Invocation, body, field_options, output_options, pass_invocation
from gpucloud_cli.resources import BY_NAME
from gpucloud_cli.verbs import path_of
from gpucloud_cli.wording import HELP


@dataclass(frozen=True)
class Act:
    """A request about one object: the last part of its path, and what it does."""

    resource: str
    name: str
    sentence: str
    # The last part of the path, if it is not the command's name.
    path: str | None = None
    method: str = "POST"
    # Values that the command gives; the other fields of the API are options.
    given: Mapping[str, Any] = field(default_factory=dict)
    example: str = ""

    @property
    def operation(self) -> str:
        """Return the operation's name in `schema.json`."""
        return f"{self.method} {BY_NAME[self.resource].pattern}{{}}/{self._end}"

    def path_of(self, key: str) -> str:
        """Return the path for the object with this key."""
        return path_of(BY_NAME[self.resource], None, key) + self._end

    @property
    def _end(self) -> str:
        end = self.name if self.path is None else self.path
        return f"{end}/" if end else ""


ACTS = (
    Act("quota-request", "forward", "Pass a member's quota request on to the operators (the tenant's admins)."),
    Act("quota-request", "approve", "Approve a quota request (operators).", example="--dry-run"),
    Act(
        "quota-request",
        "deny",
        "Deny a quota request with a reason (operators; the tenant's admins before they pass it on).",
        example='--words "ask again in May"',
    ),
    Act(
        "quota-request",
        "counter",
        "Counter a quota request with another amount, which the tenant may accept (operators).",
        example="--amount 64GiB",
    ),
    Act("quota-request", "withdraw", "Withdraw a quota request."),
    Act(
        "node",
        "cordon",
        "Cordon a node: it takes no new claims, and running claims stay.",
        path="",
        method="PATCH",
        given={"cordoned": True},
    ),
    Act(
        "node",
        "uncordon",
        "Uncordon a node: it takes new claims again.",
        path="",
        method="PATCH",
        given={"cordoned": False},
    ),
    Act(
        "node",
        "drain",
        "Drain a node: it takes no new claims, and its claims leave or are suspended; `uncordon` ends that.",
        example="--grace 10m",
    ),
    Act(
        "node",
        "lift-fence",
        "Lift a node's fence: it takes new claims again after a fence for unclaimed GPU processes.",
    ),
    Act("claim", "renew", "Renew a claim's lease from now."),
    Act(
        "claim",
        "env",
        "Show the environment of a process under a claim; it includes the claim's secret.",
        method="GET",
    ),
    Act(
        "claim",
        "forecast",
        "Show what a claim is forecast to need, and how often such forecasts were too low.",
        method="GET",
    ),
    Act("node", "forget", "Forget a lost node: release its claims, and refuse its agent."),
    Act(
        "node",
        "drift",
        "Show a node's drift: its desired state, its actual state, and manual changes on the machine.",
        method="GET",
    ),
    Act("node", "repair", "Repair a node's drift: its agent undoes manual changes on the machine."),
    Act("gpu", "clear", "Clear a GPU's XID error after a reset."),
    Act("gpu", "processes", "Show the processes on a GPU.", method="GET"),
    Act("proposal", "accept", "Accept a proposal: it is applied."),
    Act("proposal", "dismiss", "Dismiss a proposal: the claim stays as it is.", example='--words "still training"'),
    Act(
        "reservation",
        "release",
        "Release a reservation, before it begins or before it ends, with the claims in it; may be repeated.",
    ),
    Act(
        "user",
        "activate",
        "Activate a user again.",
        path="",
        method="PATCH",
        given={"active": True},
    ),
    Act(
        "user",
        "deactivate",
        "Deactivate a user: end their sessions and revoke their tokens.",
        path="",
        method="PATCH",
        given={"active": False},
    ),
)


def _command(act: Act) -> click.Command:
    resource, is_claim = BY_NAME[act.resource], act.resource == "claim"
    fields = () if act.given else body_fields(act.operation, act.resource)
    example = f"gpucloud {act.resource} {act.name} {WORDING[act.resource].key} {act.example}".strip()

    @click.command(act.name, help=f"{act.sentence}\n\nExample: {example}")
    @click.argument("key", metavar="CLAIM" if is_claim else resource.key.upper())
    @field_options(fields)
    @output_options
    @pass_invocation
    def command(invocation: Invocation, /, key: str, dry_run: bool = False, **given: Any) -> None:
        wanted = {**act.given, **body(fields, given)}
        with invocation.api() as api:
            path = act.path_of(find_claim(api, key) if is_claim else key)
            if act.method == "GET":
                answer = api.get(path)
            else:
                send = api.patch if act.method == "PATCH" else api.post
                answer = send(path, wanted, dry_run=dry_run or None)
            invocation.show(answer.body)

    if not act.given and has_preview(act.operation):
        help_text = HELP.get(f"{act.resource} {act.name}.dry_run", HELP["dry_run"])
        command.params.append(click.Option(["--dry-run"], is_flag=True, help=help_text))
    return command


COMMANDS = {
    resource: tuple(_command(act) for act in ACTS if act.resource == resource)
    for resource in dict.fromkeys(act.resource for act in ACTS)
}
