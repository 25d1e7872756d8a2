"""Output of benchmarks: tables, then one line of JSON with the same rows."""

import json
import os
import platform as machine
from collections.abc import Sequence
from pathlib import Path
from typing import Any

Row = dict[str, Any]


def quantile(values: Sequence[float], share: float) -> float:
    """Return the value below which this share of the values lies (nearest rank)."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, round(share * len(ordered) + 0.5) - 1))]


def spread_ms(milliseconds: Sequence[float]) -> Row:
    """Return the columns for durations, over all repetitions."""
    shares = {"p50 ms": 0.50, "p95 ms": 0.95, "p99 ms": 0.99}
    return {column: quantile(milliseconds, share) for column, share in shares.items()} | {"max ms": max(milliseconds)}


def print_report(name: str, *tables: Sequence[Row]) -> None:
    """Print every table, and last one line of JSON with all rows. A table's rows have the same fields."""
    for rows in tables:
        _print_table(rows)
    rounded = [{column: _rounded(value) for column, value in row.items()} for rows in tables for row in rows]
    print(json.dumps({"bench": name, "machine": description(), "rows": rounded}), flush=True)


def _print_table(rows: Sequence[Row]) -> None:
    columns = list(rows[0])
    cells = [[_text(row[column]) for column in columns] for row in rows]
    widths = [max(len(column), *(len(line[at]) for line in cells)) for at, column in enumerate(columns)]
    print()
    for line in [columns, *cells]:
        print("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)))
    print()


def description() -> str:
    """Return processor, number of cores, kernel and Python, which every figure depends on."""
    cpu = machine.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            cpu = line.partition(":")[2].strip()
            break
    return f"{cpu}, {os.cpu_count()} cores, Linux {machine.release()}, Python {machine.python_version()}"


def _rounded(value: object) -> object:
    return round(value, 3) if isinstance(value, float) else value


def _text(value: object) -> str:
    return f"{value:.2f}" if isinstance(value, float) else str(value)
