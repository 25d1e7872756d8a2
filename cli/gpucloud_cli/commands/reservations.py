"""`reservation create|calendar`."""

from dataclasses import replace
from typing import Any
from urllib.parse import quote

import click

from gpucloud_cli.amounts import IN
from gpucloud_cli.failures import Problem, Usage
from gpucloud_cli.fields import body_fields
from gpucloud_cli.options import Invocation, body, field_options, output_options, pass_invocation, tenant_of
from gpucloud_cli.resources import BY_NAME

RESERVATION = BY_NAME["reservation"]
# The tenant is the token's only one unless given.
BOOKED = tuple(
    replace(field, required=field.required and field.name != "tenant")
    for field in body_fields("POST reservations/", "reservation")
)


@click.command()
@field_options(BOOKED)
@click.option("--dry-run", is_flag=True, help="show conflicts and free windows; book nothing")
@output_options
@pass_invocation
def create(invocation: Invocation, /, dry_run: bool, **given: Any) -> None:
    """Create a reservation; exit 3 if its window is taken, with the earliest free one.

    Example: gpucloud reservation create --core 100 --memory 64GiB --start 2026-07-01T08:00Z --end 2026-07-01T18:00Z
    """
    wanted = body(BOOKED, given)
    with invocation.api() as api:
        wanted["tenant"] = tenant_of(api, wanted.get("tenant"))
        invocation.show(api.post(RESERVATION.path, wanted, dry_run=dry_run or None).body)


@click.command()
@click.argument("pool", default="default")
@click.option("--from", "from_", type=IN, help="a time in ISO 8601, or like 1d from now; default: now")
@click.option("--to", "to_", type=IN, help="a time in ISO 8601, or like 7d from now; default: a week later")
@click.option("--node", help="show this node's GPUs only")
@output_options
@pass_invocation
def calendar(invocation: Invocation, /, pool: str, from_: str | None, to_: str | None, node: str | None) -> None:
    """Show the calendar of a pool: the reserved part of each GPU over time.

    Example: gpucloud reservation calendar default --node gpu-7
    """
    try:
        with invocation.api() as api:
            found = api.get(f"pools/{quote(pool, safe='')}/calendar/", **{"from": from_, "to": to_, "node": node}).body
    except Problem as problem:
        if problem.status == 404:
            raise Usage(str(problem)) from problem
        raise
    if invocation.structured:
        invocation.show(found)
        return
    rows = [
        {"node": gpu["node"], "gpu": gpu["index"], **interval} for gpu in found["gpus"] for interval in gpu["intervals"]
    ]
    invocation.show(rows, columns=("node", "gpu", "from", "to", "core", "memory_mib"))


COMMANDS = {"reservation": (create, calendar)}
