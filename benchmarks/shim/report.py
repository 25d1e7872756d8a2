"""Results of a part: tables in markdown, raw figures in JSON, plots in SVG; one directory for all of them."""

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.shim.sampling import Spread

Cell = float | int | str | None


class Report:
    """One part's results. Tables are written as they come, so that a part that fails later keeps them."""

    def __init__(self, part: str, about: str, machine: Mapping[str, Any], directory: Path) -> None:
        self._part, self._about, self._machine, self._directory = part, about, machine, directory
        self._began = time.time()
        self._blocks: list[str] = []
        self._tables: list[dict[str, Any]] = []
        self._raw: dict[str, Any] = {}
        self._failures: list[str] = []

    def table(self, title: str, rows: Sequence[Mapping[str, Cell]]) -> None:
        """Add a table of rows with the same columns; nothing if there are no rows."""
        if not rows:
            return
        self._tables.append({"title": title, "rows": list(rows)})
        columns = list(rows[0])
        lines = [
            _line(columns),
            _line(["---"] * len(columns)),
            *(_line([_text(row[c]) for c in columns]) for row in rows),
        ]
        self._block(f"**{title}**\n\n" + "\n".join(lines))

    def note(self, text: str) -> None:
        self._block(text)

    def add_failure(self, what: str, error: BaseException) -> None:
        """Record that a measurement failed; the part continues."""
        said = f"{what}: {type(error).__name__}: {error}"
        self._failures.append(said)
        self._block(f"FAILED: {said}")

    def raw(self, name: str, data: object) -> None:
        self._raw[name] = data

    def plot(self, name: str, svg: str) -> None:
        file = self._directory / f"{self._part}-{name}.svg"
        file.write_text(svg)
        self._block(f"![{name}]({file.name})")

    @property
    def whole(self) -> bool:
        return not self._failures

    def write(self) -> None:
        """Write PART.md and PART.json, and results.md and results.json of all parts in the directory."""
        seconds = time.time() - self._began
        stamp = time.strftime("%Y-%m-%d %H:%M", time.gmtime(self._began))
        machine = ", ".join(f"{value}" for value in self._machine.values())
        head = f"## {self._part}: {self._about}\n\n{stamp} UTC, {seconds:.0f} s. {machine}.\n"
        (self._directory / f"{self._part}.md").write_text("\n\n".join([head, *self._blocks]) + "\n")
        found = {
            "part": self._part, "about": self._about, "began": stamp, "seconds": round(seconds, 1),
            "machine": dict(self._machine), "failures": self._failures, "tables": self._tables, "raw": self._raw,
        }  # fmt: skip
        (self._directory / f"{self._part}.json").write_text(json.dumps(_rounded(found), indent=1) + "\n")
        self._gather()

    def _gather(self) -> None:
        parts = sorted(self._directory.glob("*.json"))
        found = [json.loads(file.read_text()) for file in parts if file.name != "results.json"]
        (self._directory / "results.json").write_text(json.dumps(found) + "\n")
        texts = [file.with_suffix(".md").read_text() for file in parts if file.name != "results.json"]
        (self._directory / "results.md").write_text("\n".join(texts))

    def _block(self, text: str) -> None:
        self._blocks.append(text)
        print(f"\n{text}", flush=True)


def plus_minus(spread: Spread, digits: int = 2) -> str:
    """Format ``mean ± sd``."""
    return f"{spread.mean:.{digits}f} ± {spread.sd:.{digits}f}"


def from_to(spread: Spread, digits: int = 1) -> str:
    """Format ``least – greatest``."""
    return f"{spread.least:.{digits}f} – {spread.most:.{digits}f}"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _text(value: Cell) -> str:
    if value is None:
        return "–"
    return f"{value:,.2f}" if isinstance(value, float) else str(value)


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 5)
    if isinstance(value, Mapping):
        return {key: _rounded(inner) for key, inner in value.items()}
    return [_rounded(inner) for inner in value] if isinstance(value, list | tuple) else value
