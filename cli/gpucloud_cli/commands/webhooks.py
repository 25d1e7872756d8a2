"""`webhook test|deliveries|redeliver|rotate`, and `delete` as another word for `remove`."""

import time
from typing import Any
from urllib.parse import quote

import click

from gpucloud_cli import output
from gpucloud_cli.api import PAGE, Api
from gpucloud_cli.doors import Asked, answers, asked
from gpucloud_cli.failures import Failure
from gpucloud_cli.resources import BY_NAME
from gpucloud_cli.verbs import path_of

WEBHOOK = BY_NAME["webhook"]
COLUMNS = ("uid", "kind", "state", "attempts", "status_code", "error", "created_at", "next_attempt_at")
# Longer than one attempt may take.
PATIENCE_SECONDS = 20.0
LOOK_SECONDS = 0.3


def join(root: click.Group) -> None:
    """Take part in the command tree."""
    group = root.commands["webhook"]
    assert isinstance(group, click.Group)
    for command in (test, deliveries, redeliver, rotate):
        group.add_command(command)
    group.add_command(group.commands["remove"], "delete")


@click.command()
@click.argument("uid")
@answers
@asked
def test(asked: Asked, *, uid: str) -> None:
    """Send a message that says that it is a test, and show what came of it (exit 1 where it failed)."""
    with asked.api() as api:
        made = api.post(f"{path_of(WEBHOOK, None, uid)}test/", {}).body
        row = _first_attempt(api, uid, made)
    asked.show(row)
    if row["state"] != "delivered":
        raise Failure(row["error"] or "It was not sent yet: is a worker running?")


def _first_attempt(api: Api, uid: str, made: dict[str, Any]) -> dict[str, Any]:
    """The delivery once it was tried, or as it is when patience is over."""
    end = time.monotonic() + PATIENCE_SECONDS
    row = made
    while row["state"] == "pending" and row["error"] is None and time.monotonic() < end:
        time.sleep(LOOK_SECONDS)
        listed = api.rows(f"{path_of(WEBHOOK, None, uid)}deliveries/", most=PAGE, kind=made["kind"])
        row = next((item for item in listed if item["uid"] == made["uid"]), row)
    return row


@click.command()
@click.argument("uid")
@click.option("--state", type=click.Choice(["pending", "delivered", "failed"]), help="only these")
@click.option("--all", "everything", is_flag=True, help=f"not only the last {PAGE}")
@answers
@asked
def deliveries(asked: Asked, *, uid: str, state: str | None, everything: bool) -> None:
    """List what was sent to it, or is to be, newest first."""
    wanted = {} if state is None else {"state": state}
    with asked.api() as api:
        path = f"{path_of(WEBHOOK, None, uid)}deliveries/"
        rows = list(api.rows(path, most=None if everything else PAGE, **wanted))
    asked.show(rows, columns=COLUMNS)


@click.command()
@click.argument("uid")
@click.argument("delivery")
@answers
@asked
def redeliver(asked: Asked, *, uid: str, delivery: str) -> None:
    """Send one of its deliveries again, under the same id."""
    with asked.api() as api:
        path = f"{path_of(WEBHOOK, None, uid)}deliveries/{quote(delivery, safe='')}/redeliver/"
        asked.show(api.post(path, {}).body)


@click.command()
@click.argument("uid")
@answers
@asked
def rotate(asked: Asked, *, uid: str) -> None:
    """Make a new secret, shown this once; for a day messages are signed with the old one too."""
    with asked.api() as api:
        made = api.post(f"{path_of(WEBHOOK, None, uid)}rotate/", {}).body
    asked.show(made)
    if made["secret"]:
        output.say("the secret is shown this once")
