"""`gpucloud top`: measured use of live claims."""

import sys
import time
from collections.abc import Callable
from typing import Any

import click
from rich.console import Group
from rich.live import Live

from gpucloud_cli import output
from gpucloud_cli.addressing import refuse_unknown
from gpucloud_cli.amounts import DURATION, duration_text
from gpucloud_cli.api import Api
from gpucloud_cli.failures import Unreachable
from gpucloud_cli.options import Invocation, output_options, pass_invocation

STATES = ("active", "assigned", "queued", "pending", "failed")
COLUMNS = ("tenant", "name", "state", "where", "core", "throttled", "memory", "out", "age", "uid")
MOST_ROWS = 200


@click.command()
@click.option("--tenant", help="show this tenant's claims only")
@click.option("--once", is_flag=True, help="print once and exit, as without a terminal")
@click.option("--interval", type=DURATION, default="2s", show_default=True, help="time between two refreshes")
@output_options
@pass_invocation
def top(invocation: Invocation, tenant: str | None, once: bool, interval: int) -> None:
    """Show live claims with their use against their limits; Ctrl-C ends it.

    Example: gpucloud top --tenant vision
    """
    with invocation.api() as api:
        if once or invocation.format != "table" or not sys.stdout.isatty():
            rows = read_rows(api, tenant)
            invocation.show(rows, columns=columns_of(rows), wide=("pool", "created_by"))
        else:
            watch(api, tenant, interval)


def watch(api: Api, tenant: str | None, interval: int) -> None:
    """Refresh until Ctrl-C; if the server is down, print that and wait."""
    message, rows = "", read_rows(api, tenant)
    try:
        with Live(console=output.console(width=None), auto_refresh=False, screen=True) as live:
            while True:
                live.update(
                    Group(f"{api.url}  {time.strftime('%H:%M:%S')}  {message}", output.drawing(rows, columns_of(rows)))
                )
                live.refresh()
                time.sleep(max(interval, 1))
                try:
                    message, rows = "", read_rows(api, tenant)
                except Unreachable as lost:
                    message = str(lost)
    except KeyboardInterrupt:
        pass


def columns_of(rows: list[dict[str, Any]]) -> tuple[str, ...]:
    """Return the columns: `out`, memory in host memory, only where a claim may borrow memory."""
    return COLUMNS if any(row["out"] for row in rows) else tuple(name for name in COLUMNS if name != "out")


def read_rows(api: Api, tenant: str | None) -> list[dict[str, Any]]:
    """Return a row for each live claim, measured ones first."""
    claims = [claim for state in STATES for claim in api.rows("claims/", most=MOST_ROWS, state=state, tenant=tenant)]
    if not claims:
        refuse_unknown(api, {"tenant": tenant})
    measured: dict[str, list[dict[str, Any]]] = {}
    for slug in sorted({claim["tenant"] for claim in claims}):
        for series in api.get("utilization/", tenant=slug).body["series"]:
            measured.setdefault(series["claim"], []).append(series)
    return [row(claim, measured.get(claim["uid"], [])) for claim in claims]


def row(claim: dict[str, Any], series: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a claim's row: sums over its GPUs, and the largest share of time in which it was throttled."""
    ages = [one["age_seconds"] for one in series if one["age_seconds"] is not None]
    return {
        "tenant": claim["tenant"],
        "name": claim["name"],
        "state": claim["state"],
        "where": ",".join(f"{item['node']}/{item['gpu_index']}" for item in claim["assignments"]) or None,
        "core": _of(series, "core_percent", claim["core_limit"] * claim["gpu_count"], "%"),
        "throttled": _of(series, "throttled_percent", None, "%", together=max),
        "memory": _of(
            series, "memory_mib", (claim["memory_limit_mib"] or claim["memory_mib"]) * claim["gpu_count"], "MiB"
        ),
        "out": _of(series, "memory_out_mib", None, "MiB"),
        "age": duration_text(round(max(ages))) if ages else None,
        "uid": claim["uid"],
        "pool": claim["pool"],
        "created_by": claim["created_by"],
    }


def _of(
    series: list[dict[str, Any]],
    name: str,
    limit: int | None,
    unit: str,
    *,
    together: Callable[[list[float]], float] = sum,
) -> str | None:
    latest = [one[name][-1] for one in series if one.get(name) and one[name][-1] is not None]
    if not latest:
        return None
    return f"{together(latest):.0f}{'' if limit is None else f'/{limit}'} {unit}"


COMMANDS = {"": (top,)}
