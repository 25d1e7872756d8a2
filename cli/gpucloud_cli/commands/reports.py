"""`gpucloud report`: GPU-hours reserved, their cost and forecast; GPU-hours unused; formats of other tools."""

import csv
import json
import sys
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import parse_qs, urlsplit

import click

from gpucloud_cli import output
from gpucloud_cli.failures import Usage
from gpucloud_cli.fields import choice
from gpucloud_cli.options import Invocation, output_options, pass_invocation

GROUPS, RANGES = choice("GET reports/efficiency/", "by"), choice("GET reports/efficiency/", "range")
HOURS = ("gpu_hours_reserved", "gpu_hours_used", "gpu_hours_unused", "percent")
COLUMNS = {"claim": ("name", "kind", "tenant", "pool", "owner", *HOURS, "uid")}
COSTS = ("gpu_hours_reserved", "cost_reserved", "gpu_hours_unpriced")
USAGE_COLUMNS = {
    "model": ("tenant", "pool", "gpu_model", "gpu_hours_used", *COSTS),
    "organisation": ("organisation", "pool", "gpu_model", "gpu_hours_used", *COSTS),
    "person": ("tenant", "owner", "pool", "gpu_model", *COSTS),
    "claim": ("tenant", "name", "owner", "pool", "gpu_model", *COSTS, "claim"),
}


@click.group()
def report() -> None:
    """Show reports of GPU-hours."""


@report.command()
@click.option("--by", type=GROUPS, default="person", show_default=True, help="a row for each of these")
@click.option("--range", "within", type=RANGES, default="week", show_default=True, help="the last 24 hours or days")
@click.option("--tenant", help="only this tenant")
@click.option("--pool", help="only this pool")
@click.option("--person", help="only what this person made: anna, or a name as in the report")
@click.option("--limit", type=click.IntRange(1, 5000), default=100, show_default=True, help="the number of rows")
@output_options
@pass_invocation
def efficiency(
    invocation: Invocation, /, *, by: str, within: str, person: str | None, limit: int, **where: Any
) -> None:
    """Show allocated less used GPU-hours, the most unused first.

    Example: gpucloud report efficiency --by claim --range 30days --tenant vision
    """
    if person is not None and ":" not in person and person != "system":
        person = f"user:{person}"
    with invocation.api() as api:
        body = api.get("reports/efficiency/", by=by, range=within, person=person, limit=limit, **where).body
    if invocation.structured:
        invocation.show(body)
        return
    rows = [{**row, "percent": None if row["percent"] is None else f"{row['percent']:.0f} %"} for row in body["rows"]]
    output.table(rows, COLUMNS.get(by, ("name", *HOURS)))
    total = body["total"]
    words = f"{total['gpu_hours_unused']:g} of {total['gpu_hours_reserved']:g} allocated GPU-hours were not used"
    output.say(words + (f"; these are the first {limit} rows, see --limit" if body["more"] else ""))


@report.command()
@click.option("--by", type=click.Choice(list(USAGE_COLUMNS)), default="model", show_default=True, help="a row for each")
@click.option("--from", "begin", help="a time, ISO 8601; default: the beginning of this month, UTC")
@click.option("--to", help="a time, ISO 8601; default: now")
@click.option("--tenant", help="only this tenant")
@click.option("--organisation", help="only tenants of this organisation and of all below it")
@output_options
@pass_invocation
def usage(invocation: Invocation, /, *, by: str, begin: str | None, **where: Any) -> None:
    """Show GPU-hours reserved in a period, their cost, and a forecast to the end of the month.

    By organisation a row has all that is below it; the sum counts each tenant once.

    Example: gpucloud report usage --by person --from 2026-06-01T00:00:00Z --tenant vision
    """
    with invocation.api() as api:
        body = api.get("reports/usage/", **{"by": by, "from": begin, **where}).body
    if invocation.structured:
        invocation.show(body)
        return
    output.table(body["rows"], USAGE_COLUMNS[by])
    total, forecast, currency = body["total"], body["forecast"], body["currency"]
    output.say(f"{total['gpu_hours_reserved']} GPU-hours reserved, {total['cost_reserved']} {currency}")
    if forecast:
        expected = f"{forecast['gpu_hours_reserved']} GPU-hours, {forecast['cost_reserved']} {currency}"
        output.say(f"forecast until {forecast['to'][:10]}: {expected}")
    if body["next"]:
        output.say(f"these are the first {len(body['rows'])} rows; the API has the next pages")


@report.command()
@click.option("--month", help="a month, UTC, like 2026-11; default: this month until now")
@click.option("--tenant", help="only this tenant")
@pass_invocation
def focus(invocation: Invocation, /, *, month: str | None, tenant: str | None) -> None:
    """Print the charges of a month as CSV in the columns of FOCUS 1.2.

    Example: gpucloud report focus --month 2026-11
    """
    begin, to = month_bounds(month)
    writer: csv.DictWriter[str] | None = None
    with invocation.api() as api:
        after = None
        while writer is None or after is not None:
            body = api.get("reports/focus/", **{"from": begin, "to": to, "tenant": tenant, "after": after}).body
            rows, following = body["rows"], body["next"]
            # All pages are of the period of the first one.
            begin, to = body["from"], body["to"]
            if writer is None:
                writer = csv.DictWriter(sys.stdout, body["columns"], lineterminator="\n")
                writer.writeheader()
            writer.writerows(rows)
            after = parse_qs(urlsplit(following).query)["after"][0] if following else None


@report.command()
@click.option("--window", default="7d", show_default=True, help="today, lastweek, 12h, or two times with a comma")
@click.option("--aggregate", default="namespace", show_default=True, help="properties, with commas between them")
@click.option("--step", help="the length of a set, like 1d; default: one set")
@click.option("--tenant", help="only this tenant")
@pass_invocation
def opencost(invocation: Invocation, /, **query: Any) -> None:
    """Print GPU-hours and their cost as JSON in the shape of OpenCost's allocations.

    Example: gpucloud report opencost --window lastmonth --aggregate namespace,label:owner --step 1d
    """
    with invocation.api() as api:
        click.echo(json.dumps(api.get("reports/opencost/", **query).body, indent=2))


def month_bounds(month: str | None) -> tuple[str | None, str | None]:
    """Return the first moments of a month and of the next; None for this month. Raises Usage."""
    if month is None:
        return None, None
    try:
        begin = datetime.strptime(month, "%Y-%m").replace(tzinfo=UTC)
    except ValueError:
        raise Usage(f"--month: {month} is no month; write it like 2026-11.") from None
    return begin.isoformat(), (begin + timedelta(days=31)).replace(day=1).isoformat()


COMMANDS = {"": (report,)}
