"""Text for people: facts and tables with units, and times with their age."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import click

from gpucloud_cli import output
from gpucloud_cli.amounts import duration_text, size_text

MOST_ROWS = 20
# An age is for orientation: two units at most.
UNITS = ((86400, 3600), (3600, 60), (60, 1))
# Columns whose unit is that of the row's `resource` or `field`.
AMOUNTS = frozenset({"hard", "used", "borrowed", "lent", "free", "minimum", "maximum", "default"})
TIMES = ("_at", "_until", "since", "at")
UNIT_SUFFIX = ("_seconds", "_mib", "_percent", "_at")
LABELS = {"uid": "UID", "gpu_count": "GPUs", "gpu_index": "GPU", "gpu_model": "GPU model", "gpu_hours": "GPU-hours"}


def section(title: str, row: Mapping[str, Any], names: Iterable[str]) -> None:
    """Print aligned facts, indented under a title; facts without a value are left out."""
    shown = {_label(name): _text(row, name, time=moment) for name in names if row.get(name) not in (None, "", {}, [])}
    if title and shown:
        click.echo(f"{title}:")
    width = max(map(len, shown), default=0) + 1
    for name, value in shown.items():
        click.echo(f"{'  ' if title else ''}{name + ':':<{width}}  {value}")


def table(title: str, rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> None:
    """Print aligned rows under a title and their heads; nothing if there are none."""
    if not rows:
        return
    click.echo(f"{title[0].upper()}{title[1:]}:")
    lines = [[_label(name).upper() for name in names], *([_text(row, name) for name in names] for row in rows)]
    widths = [max(len(line[place]) for line in lines) for place in range(len(names))]
    # A single column needs no head.
    for line in lines[: MOST_ROWS + 1] if len(names) > 1 else lines[1:]:
        click.echo("  " + "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
    if len(rows) > MOST_ROWS:
        click.echo("  …")


def _label(name: str) -> str:
    """Return a field's name for people; its value has the unit."""
    plain = name.rpartition(".")[2]
    for suffix in UNIT_SUFFIX:
        plain = plain.removesuffix(suffix)
    plain = plain or name
    return LABELS.get(plain, (plain[:1].upper() + plain[1:]).replace("_", " ").replace("Gpu", "GPU"))


def age(text: str) -> str:
    """Return a time as `3h12m ago`, or `in 5m`."""
    seconds = (datetime.now(UTC) - parse(text)).total_seconds()
    return f"{_short(seconds)} ago" if seconds >= 0 else f"in {_short(-seconds)}"


def _text(row: Mapping[str, Any], name: str, *, time: Any = age) -> str:
    """Return a field's value with its unit, by the field's name."""
    value = output.value(row, name)
    unit = (row.get("resource") or row.get("field") or name) if name in AMOUNTS else name
    if isinstance(value, str) and name.endswith(TIMES):
        return str(time(value))
    if isinstance(value, int) and not isinstance(value, bool):
        if unit.endswith("_mib"):
            return size_text(value)
        if unit.startswith("core_") or unit.endswith("percent"):
            return f"{value} %"
        if unit.endswith("_seconds"):
            return duration_text(value)
    if isinstance(value, Mapping):
        return ", ".join(f"{key}={inner}" for key, inner in value.items())
    return output.text("all pools" if value is None and name == "pool" else output.field_text(name, value))


def parse(text: str) -> datetime:
    """Return a time of the API."""
    return datetime.fromisoformat(text).astimezone(UTC)


def moment(text: str) -> str:
    """Return a time in UTC with its age: `2026-11-24 09:54:03 UTC (3h12m ago)`."""
    return f"{parse(text):%Y-%m-%d %H:%M:%S} UTC ({age(text)})"


def _short(seconds: float) -> str:
    whole = max(int(seconds), 0)
    for unit, least in UNITS:
        if whole >= unit:
            return duration_text(whole - whole % least)
    return f"{whole}s"
