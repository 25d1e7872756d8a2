"""Comparison of interposed, passed and known entries: each known entry is in exactly one of the first two."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import entries

ASKED = (
    "Stand before it (shim/lookup/real.h and a hook), or list it in audit/{passed} under the reason why it may pass."
)


@dataclass(frozen=True)
class Lists:
    """One family's names.

    ``known`` are the headers', ``called`` those that the shim itself needs.
    """

    family: entries.Family
    known: set[str]
    hooked: list[str]
    called: list[str]
    passed: list[tuple[str, str]]


def read(family: entries.Family) -> Lists:
    """Read the committed lists.

    Raises AuditError if a file cannot be parsed.
    """
    shim = entries.SHIM.read_text(encoding="utf-8")
    known = {name for file in family.lists for name in entries.of_list(file)}
    passed = entries.of_passed((entries.HERE / family.passed).read_text(encoding="utf-8"))
    hooked = entries.of_macro(shim, family.hooked)
    return Lists(family, known, hooked, entries.of_macro(shim, family.called), passed)


def _twice(names: list[str]) -> list[str]:
    return sorted(name for name, count in Counter(names).items() if count > 1)


def complaints(lists: Lists) -> list[str]:
    """Return every complaint about one family, a sentence each."""
    family = lists.family
    passed = [name for name, _ in lists.passed]
    bases = {entries.without_thread(name) for name in lists.known}
    said = [f"{name}: listed twice in real.h" for name in _twice(lists.hooked + lists.called)]
    said += [f"{name}: listed twice in audit/{family.passed}" for name in _twice(passed)]
    said += [f"{name}: both in real.h's {family.hooked} and in audit/{family.passed}"
             for name in sorted(set(lists.hooked) & set(passed))]  # fmt: skip
    said += [f"{name}: no entry of any {family.title} whose headers were read; audit/{family.passed} names it"
             for name in sorted(set(passed) - bases)]  # fmt: skip
    said += [f"{name}: no entry of any {family.title} whose headers were read; real.h names it"
             for name in sorted(set(lists.hooked + lists.called) - lists.known)]  # fmt: skip
    settled = set(lists.hooked) | {name for name in lists.known if entries.without_thread(name) in set(passed)}
    said += [f"{name}: neither stood before nor passed. {ASKED.format(passed=family.passed)}"
             for name in sorted(lists.known - settled)]  # fmt: skip
    return said
