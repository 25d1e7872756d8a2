"""Text for people: sections of aligned facts and rows, with units, and times with their age."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import click

from gpucloud_cli import output
from gpucloud_cli.amounts import duration_text, size_text

NONE = "<none>"
# An age is for orientation: two units at most.
UNITS = ((86400, 3600), (3600, 60), (60, 1))


def section(title: str, facts: Mapping[str, Any]) -> None:
    """Print aligned facts, indented under a title; facts that are None are left out."""
    shown = {name: value for name, value in facts.items() if value is not None}
    if title and shown:
        click.echo(f"{title}:")
    width = max(map(len, shown), default=0) + 1
    for name, value in shown.items():
        click.echo(f"{'  ' if title else ''}{name + ':':<{width}}  {output.text(value)}")


def rows(title: str, columns: Sequence[str], lines: Iterable[Sequence[Any]]) -> None:
    """Print aligned rows under a title and their heads, or `<none>`."""
    cells = [[output.text(cell) for cell in line] for line in lines]
    if not cells:
        click.echo(f"{title}:  {NONE}")
        return
    click.echo(f"{title}:")
    table = [[column.upper() for column in columns], *cells]
    widths = [max(len(line[place]) for line in table) for place in range(len(columns))]
    for line in table:
        click.echo("  " + "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def items(title: str, lines: Iterable[str]) -> None:
    """Print a list of sentences, or nothing if there are none."""
    if found := list(lines):
        click.echo(f"{title}:")
        for line in found:
            click.echo(f"  {output.text(line)}")


def parse(text: str) -> datetime:
    """Return a time of the API."""
    return datetime.fromisoformat(text).astimezone(UTC)


def moment(text: str | None) -> str | None:
    """Return a time in UTC with its age: `2026-11-24 09:54:03 UTC (3h12m ago)`."""
    if text is None:
        return None
    at = parse(text)
    seconds = (datetime.now(UTC) - at).total_seconds()
    return f"{at:%Y-%m-%d %H:%M:%S} UTC ({f'{short(seconds)} ago' if seconds >= 0 else f'in {short(-seconds)}'})"


def age(text: str | None) -> str | None:
    """Return the time since then: `3h12m`."""
    return None if text is None else short((datetime.now(UTC) - parse(text)).total_seconds())


def short(seconds: float) -> str:
    """Return a duration in two units at most."""
    whole = max(int(seconds), 0)
    for unit, least in UNITS:
        if whole >= unit:
            return duration_text(whole - whole % least)
    return f"{whole}s"


def size(mib: int | None) -> str | None:
    """Return a size with its unit."""
    return None if mib is None else size_text(mib)


def span(seconds: int | None) -> str | None:
    """Return a duration."""
    return None if seconds is None else duration_text(seconds)


def percent(value: int | None) -> str | None:
    """Return a percentage."""
    return None if value is None else f"{value} %"


def amount(resource: str, value: int | None) -> str:
    """Return an amount of a quota's resource with its unit."""
    if value is None:
        return "unlimited"
    return {"core_percent": f"{value} %", "memory_mib": size_text(value)}.get(resource, str(value))
