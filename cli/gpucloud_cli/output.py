"""Data goes to stdout: a table for people, JSON for programs. Words go to stderr."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

# A list is never cut: a uid that is half there cannot be copied. A narrow terminal wraps its lines.
WHOLE, PAGE_LINES = 100_000, 100
# Fields of which null says that there is no limit.
UNLIMITED = frozenset({"hard", "free"})
COLOURS = {
    "active": "green",
    "ready": "green",
    "in_force": "green",
    "queued": "yellow",
    "pending": "yellow",
    "releasing": "yellow",
    "cordoned": "yellow",
    "over_limit": "red",
    "failed": "red",
    "lost": "red",
}


def say(words: str) -> None:
    """Words for whoever watches."""
    click.echo(f"gpucloud: {words}", err=True)


def console(*, width: int | None = WHOLE) -> Console:
    """Stdout; rich itself heeds NO_COLOR."""
    # A width alone is not heeded where TERM is `dumb`; the height is nothing to a list.
    height = None if width is None else PAGE_LINES
    return Console(width=width, height=height, highlight=False, soft_wrap=False)


def as_json(data: Any) -> None:
    """For programs."""
    click.echo(json.dumps(data, indent=2, ensure_ascii=False))


def table(rows: Iterable[Mapping[str, Any]], columns: Sequence[str]) -> None:
    """For people: one line a row, columns by their names; a dotted name reaches into what a row holds."""
    with (out := console()).capture() as capture:
        out.print(drawing(rows, columns))
    click.echo("\n".join(line.rstrip() for line in capture.get().splitlines()))


def drawing(rows: Iterable[Mapping[str, Any]], columns: Sequence[str]) -> Table:
    """The table itself, for whoever shows it again and again."""
    drawn = Table(box=None, pad_edge=False, header_style="bold", show_edge=False)
    for column in columns:
        # Where the whole does not fit, the widest columns are cut first; `no_wrap` here would cut all alike.
        head = Text(column.rpartition(".")[2].upper().replace("_", " "), no_wrap=True, overflow="ellipsis")
        drawn.add_column(head)
    for row in rows:
        drawn.add_row(*(_cell(column, value(row, column)) for column in columns))
    return drawn


def value(row: Mapping[str, Any], column: str) -> Any:
    """What stands in this column; of a list within the row, what its first item has."""
    found: Any = row
    for part in column.split("."):
        if isinstance(found, list):
            found = found[0] if found else None
        found = found.get(part) if isinstance(found, Mapping) else None
    return found


def facts(row: Mapping[str, Any]) -> None:
    """One thing, for people: a line a fact."""
    width = max(map(len, row), default=0)
    for name, said in row.items():
        items = [said] if isinstance(said, Mapping) and said else said
        if isinstance(items, list) and items and isinstance(items[0], Mapping):
            click.echo(name)
            for item in items:
                click.echo("  " + ", ".join(f"{key}={named(key, inner)}" for key, inner in item.items()))
        else:
            click.echo(f"{name.ljust(width)}  {named(name, said)}")


def named(name: str, said: Any) -> str:
    """A field's value as people read it: a quota without a limit must not look like none at all."""
    return "unlimited" if said is None and name in UNLIMITED else text(said)


def text(said: Any) -> str:
    """A value as people read it."""
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
    return Text(named(column, said), style=style, no_wrap=True, overflow="ellipsis")
