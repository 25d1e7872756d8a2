"""The bounds of what a person presses and types on each path of docs/clicks.md, read from that page's table."""

import re
from pathlib import Path
from typing import NamedTuple

from tests.browser.persons import Person
from tests.platform import ROOT

PAGE: Path = ROOT / "docs" / "clicks.md"
ROW = re.compile(r"^\| (?P<path>[^|]+) \| (?P<clicks>\d+) \| (?P<fields>\d+) \|", re.MULTILINE)


class Effort(NamedTuple):
    """Presses of the pointer, and fields that were typed into or chosen from."""

    clicks: int
    fields: int


def bounds() -> dict[str, Effort]:
    """Return the published effort of each path, by its name."""
    return {
        row["path"].strip(): Effort(int(row["clicks"]), int(row["fields"])) for row in ROW.finditer(PAGE.read_text())
    }


class Counted:
    """A path that begins now; `ends` compares what it took with the published numbers."""

    def __init__(self, person: Person) -> None:
        self._person = person
        self._begun = self._now()

    def ends(self, path: str) -> None:
        """Check the effort since the beginning, exactly: a path that got shorter is published, too."""
        now, published = self._now(), bounds()
        took = Effort(now.clicks - self._begun.clicks, now.fields - self._begun.fields)
        assert took == published[path], f"{path}: {took}, published in {PAGE.name}: {published[path]}"

    def _now(self) -> Effort:
        return Effort(self._person.presses, self._person.fields)
