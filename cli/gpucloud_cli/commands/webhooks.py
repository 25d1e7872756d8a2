"""`webhook test|deliveries|redeliver|rotate`, and `delete` as a synonym of `remove`."""

import time
from typing import Any
from urllib.parse import quote

import click

from gpucloud_cli import output
from gpucloud_cli.api import PAGE, Api
from gpucloud_cli.failures import Failure
from gpucloud_cli.fields import choice
from gpucloud_cli.options import Invocation, output_options, pass_invocation
from gpucloud_cli.resources import BY_NAME
from gpucloud_cli.verbs import path_of

WEBHOOK = BY_NAME["webhook"]
COLUMNS = ("uid", "kind", "state", "attempts", "status_code", "error", "created_at", "next_attempt_at")
# Longer than the limit of one attempt.
PATIENCE_SECONDS = 20.0
LOOK_SECONDS = 0.3


@click.command()
@click.argument("uid")
@output_options
@pass_invocation
def test(invocation: Invocation, *, uid: str) -> None:
    """Test a webhook: send a test message and show the result (exit 1 if it failed).

    Example: gpucloud webhook test 0198c1ab-…
    """
    with invocation.api() as api:
        made = api.post(f"{path_of(WEBHOOK, None, uid)}test/", {}).body
        row = _first_attempt(api, uid, made)
    invocation.show(row)
    if row["state"] != "delivered":
        raise Failure(row["error"] or "It was not sent yet: is a worker running?")


def _first_attempt(api: Api, uid: str, made: dict[str, Any]) -> dict[str, Any]:
    """Return the delivery after its first attempt, or its current state when patience ends."""
    end = time.monotonic() + PATIENCE_SECONDS
    row = made
    while row["state"] == "pending" and row["error"] is None and time.monotonic() < end:
        time.sleep(LOOK_SECONDS)
        listed = api.rows(f"{path_of(WEBHOOK, None, uid)}deliveries/", most=PAGE, kind=made["kind"])
        row = next((item for item in listed if item["uid"] == made["uid"]), row)
    return row


@click.command()
@click.argument("uid")
@click.option("--state", type=choice("GET webhooks/{}/deliveries/", "state"), help="list this state only")
@click.option("--all", "everything", is_flag=True, help=f"list all, not only the last {PAGE}")
@output_options
@pass_invocation
def deliveries(invocation: Invocation, *, uid: str, state: str | None, everything: bool) -> None:
    """List a webhook's deliveries, pending ones included, newest first.

    Example: gpucloud webhook deliveries 0198c1ab-… --state failed
    """
    wanted = {} if state is None else {"state": state}
    with invocation.api() as api:
        path = f"{path_of(WEBHOOK, None, uid)}deliveries/"
        rows = list(api.rows(path, most=None if everything else PAGE, **wanted))
    invocation.show(rows, columns=COLUMNS)


@click.command()
@click.argument("uid")
@click.argument("delivery")
@output_options
@pass_invocation
def redeliver(invocation: Invocation, *, uid: str, delivery: str) -> None:
    """Redeliver a message under the same id.

    Example: gpucloud webhook redeliver 0198c1ab-… 0198c1ac-…
    """
    with invocation.api() as api:
        path = f"{path_of(WEBHOOK, None, uid)}deliveries/{quote(delivery, safe='')}/redeliver/"
        invocation.show(api.post(path, {}).body)


@click.command()
@click.argument("uid")
@output_options
@pass_invocation
def rotate(invocation: Invocation, *, uid: str) -> None:
    """Rotate a webhook's secret, shown this once; for a day messages are signed with the old one too.

    Example: gpucloud webhook rotate 0198c1ab-…
    """
    with invocation.api() as api:
        made = api.post(f"{path_of(WEBHOOK, None, uid)}rotate/", {}).body
    invocation.show(made)
    if made["secret"]:
        output.say("the secret is shown this once")


COMMANDS = {"webhook": (test, deliveries, redeliver, rotate)}
