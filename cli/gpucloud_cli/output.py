"""Output: data to stdout, as a table for people or JSON for programs; messages to stderr."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gpucloud_cli.amounts import duration_text
from gpucloud_cli.failures import Usage

# A list is never cut: a truncated uid cannot be copied. A narrow terminal wraps its lines.
WHOLE, PAGE_LINES = 100_000, 100
SECONDS = "_seconds"
# Fields of which null means no limit.
UNLIMITED = frozenset({"hard", "free"})
COLOURS = {
    "active": "green",
    "ready": "green",
    "in_force": "green",
    "queued": "yellow",
    "pending": "yellow",
    "releasing": "yellow",
    "cordoned": "yellow",
    "draining": "yellow",
    "over_limit": "red",
    "failed": "red",
    "lost": "red",
}


def say(words: str) -> None:
    """Print a message to stderr."""
    click.echo(f"gpucloud: {words}", err=True)


def console(*, width: int | None = WHOLE) -> Console:
    """Return a console on stdout; rich itself respects NO_COLOR."""
    # rich ignores a width alone if TERM is `dumb`; the height does not matter for a list.
    height = None if width is None else PAGE_LINES
    return Console(width=width, height=height, highlight=False, soft_wrap=False)


def as_json(data: Any) -> None:
    """Print JSON."""
    click.echo(json.dumps(data, indent=2, ensure_ascii=False))


def as_yaml(data: Any) -> None:
    """Print YAML."""
    # By way of JSON: YAML refuses types of ours, such as a size.
    click.echo(yaml_text(json.loads(json.dumps(data))), nl=False)


def yaml_text(*documents: Any, explicit_start: bool | None = None) -> str:
    """Return YAML for people."""
    import yaml  # noqa: PLC0415 - most commands do not need it, and it is slow to import

    text: str = yaml.safe_dump_all(documents, sort_keys=False, allow_unicode=True, explicit_start=explicit_start)
    return text


def names(rows: Iterable[Mapping[str, Any]], key: str) -> None:
    """Print what names each row, one a line; for rows of another kind their uid or name."""
    for row in rows:
        name = next((row[one] for one in (key, "uid", "name", "id") if row.get(one) is not None), None)
        if name is None:
            raise Usage("What this command prints has no names: use another -o.")
        click.echo(text(name))


def table(rows: Iterable[Mapping[str, Any]], columns: Sequence[str]) -> None:
    """Print a table, one line per row; a dotted column name reads a nested field."""
    with (out := console()).capture() as capture:
        out.print(drawing(rows, columns))
    click.echo("\n".join(line.rstrip() for line in capture.get().splitlines()))


def drawing(rows: Iterable[Mapping[str, Any]], columns: Sequence[str]) -> Table:
    """Return the table itself, for repeated display."""
    drawn = Table(box=None, pad_edge=False, header_style="bold", show_edge=False)
    for column in columns:
        # If the table is too wide, the widest columns are cut first; `no_wrap` here would cut all alike.
        head = Text(_label(column.rpartition(".")[2]).upper().replace("_", " "), no_wrap=True, overflow="ellipsis")
        drawn.add_column(head)
    for row in rows:
        drawn.add_row(*(_cell(column, value(row, column)) for column in columns))
    return drawn


def value(row: Mapping[str, Any], column: str) -> Any:
    """Return the value of a column; for a list within the row, that of its first item."""
    found: Any = row
    for part in column.split("."):
        if isinstance(found, list):
            found = found[0] if found else None
        found = found.get(part) if isinstance(found, Mapping) else None
    return found


def facts(row: Mapping[str, Any]) -> None:
    """Print one object, a line per field."""
    width = max(map(len, map(_label, row)), default=0)
    for name, said in row.items():
        items = [said] if isinstance(said, Mapping) and said else said
        if isinstance(items, list) and items and isinstance(items[0], Mapping):
            click.echo(name)
            _rows(items)
        else:
            click.echo(f"{_label(name).ljust(width)}  {field_text(name, said)}")


def _rows(items: Sequence[Mapping[str, Any]]) -> None:
    """Print objects of one kind as a table, indented; of several kinds, a line for each."""
    names = list(items[0])
    if len(items) == 1 or any(list(item) != names for item in items):
        for item in items:
            click.echo("  " + ", ".join(f"{key}={field_text(key, inner)}" for key, inner in item.items()))
        return
    lines = [list(map(_label, names)), *([field_text(name, item[name]) for name in names] for item in items)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        click.echo("  " + "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def field_text(name: str, said: Any) -> str:
    """Return a field's value for people: seconds as a duration; a quota without a limit must not look empty."""
    if name.endswith(SECONDS) and isinstance(said, int | float) and not isinstance(said, bool):
        return duration_text(said)
    return "unlimited" if said is None and name in UNLIMITED else text(said)


def _label(name: str) -> str:
    """Return a field's name for people, whose value has its unit."""
    return name.removesuffix(SECONDS)


def text(said: Any) -> str:
    """Return a value for people."""
    if said is None:
        return "-"
    if isinstance(said, bool):
        return "yes" if said else "no"
    if isinstance(said, list):
        return ",".join(map(text, said)) or "-"
    # Names are other people's text: a control character must not reach the terminal.
    plain = json.dumps(said, ensure_ascii=False) if isinstance(said, dict) else str(said)
    return (
        plain if plain.isprintable() else "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in plain)
    )


def _cell(column: str, said: Any) -> Text:
    style = COLOURS.get(said, "") if isinstance(said, str) else ""
    return Text(field_text(column, said), style=style, no_wrap=True, overflow="ellipsis")
