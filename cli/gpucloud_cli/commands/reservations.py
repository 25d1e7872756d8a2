"""`reservation create|release|calendar`."""

from dataclasses import replace
from typing import Any
from urllib.parse import quote

import click

from gpucloud_cli.doors import Asked, answers, asked, body, takes, tenant_of
from gpucloud_cli.resources import BY_NAME, CLAIM_FIELDS, RESERVED_FIELDS, Field
from gpucloud_cli.verbs import path_of

RESERVATION = BY_NAME["reservation"]
SIZE = {"core_request", "memory_mib", "gpu_count", "gpu_model", "tenant", "pool"}
NEEDED = {"core_request", "memory_mib", "end_at"}
BOOKED = tuple(
    replace(field, required=field.name in NEEDED)
    for field in (
        *(field for field in CLAIM_FIELDS if field.name in SIZE),
        *RESERVED_FIELDS,
        Field("weekly_until", help="again every week until this moment, all or none", flag="--weekly-until"),
    )
)


def join(root: click.Group) -> None:
    """Take part in the command tree."""
    group = root.commands["reservation"]
    assert isinstance(group, click.Group)
    for command in (create, release, calendar):
        group.add_command(command)


@click.command()
@takes(BOOKED)
@click.option("--dry-run", is_flag=True, help="say who is in the way and which windows are free; book nothing")
@answers
@asked
def create(asked: Asked, /, dry_run: bool, **given: Any) -> None:
    """Book a window; exit 3 where it is taken, with the earliest one that is free."""
    wanted = body(BOOKED, given)
    with asked.api() as api:
        wanted["tenant"] = tenant_of(api, wanted.get("tenant"))
        asked.show(api.post(RESERVATION.path, wanted, dry_run=dry_run or None).body)


@click.command()
@click.argument("uid")
@answers
@asked
def release(asked: Asked, *, uid: str) -> None:
    """Give it back, before it begins or before it ends, with the claims in it; may be repeated."""
    with asked.api() as api:
        asked.show(api.post(f"{path_of(RESERVATION, None, uid)}release/", {}).body)


@click.command()
@click.argument("pool", default="default")
@click.option("--from", "start", metavar="TEXT", help="a moment, ISO 8601; now unless given")
@click.option("--to", "end", metavar="TEXT", help="a moment, ISO 8601; a week later unless given")
@click.option("--node", help="only this node's GPUs")
@answers
@asked
def calendar(asked: Asked, /, pool: str, start: str | None, end: str | None, node: str | None) -> None:
    """What is taken of each GPU of a pool, and when."""
    with asked.api() as api:
        found = api.get(f"pools/{quote(pool, safe='')}/calendar/", **{"from": start, "to": end, "node": node}).body
    if asked.json:
        asked.show(found)
        return
    rows = [
        {"node": gpu["node"], "gpu": gpu["index"], **interval} for gpu in found["gpus"] for interval in gpu["intervals"]
    ]
    asked.show(rows, columns=("node", "gpu", "from", "to", "core", "memory_mib"))
