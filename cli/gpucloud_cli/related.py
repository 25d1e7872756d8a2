"""Rows that belong to a described object, and its events."""

from typing import Any

from gpucloud_cli import sheets
from gpucloud_cli.api import Api
from gpucloud_cli.failures import Problem

Row = dict[str, Any]
MOST_EVENTS = 12


def read(api: Api, path: str, *, most: int | None = MOST_EVENTS, of: str = "results", **wanted: Any) -> list[Row]:
    """Return rows, at most so many; none where the token may not read them."""
    try:
        return list(api.get(path, **wanted).body[of]) if of != "results" else list(api.rows(path, most=most, **wanted))
    except Problem as problem:
        if problem.status == 403:
            return []
        raise


def print_events(states: list[tuple[str, str, str]], audit: list[Row]) -> None:
    """Print states and audited changes, newest last."""
    changes = [(row["at"], row["actor"], _change(row)) for row in audit]
    shown = sorted([*states, *changes], key=lambda event: sheets.parse(event[0]))[-MOST_EVENTS:]
    sheets.rows("Events", ("age", "by", "event"), ((sheets.age(at), actor, words) for at, actor, words in shown))


def _change(row: Row) -> str:
    """Return an audited change: the action, and the values that it changed."""
    before, after = row["before"] or {}, row["after"] or {}
    changed = [
        f"{name}: {before[name]} → {value}" for name, value in after.items() if name in before and before[name] != value
    ]
    return " ".join([row["action"], *([f"({', '.join(changed)})"] if changed else [])])
