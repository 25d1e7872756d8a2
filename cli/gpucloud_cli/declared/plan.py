"""Difference between files and server, as changes in an order that works."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from gpucloud_cli.declared.kinds import MEMBER, ORGANISATION, ORGANISATION_QUOTA, POOL, QUOTA, TENANT, Identity, Kind
from gpucloud_cli.declared.present import Row, collection

Action = Literal["create", "change", "remove"]
SIGNS: dict[Action, str] = {"create": "+", "change": "~", "remove": "-"}


@dataclass
class Declared:
    """The content of the files."""

    items: dict[Identity, dict[str, Any]] = field(default_factory=dict)
    # Lists that a document contains, by its slug: entries that they omit are not wanted.
    whole: set[tuple[str, Kind]] = field(default_factory=set)


@dataclass(frozen=True)
class Change:
    """One request that brings the server closer to the files."""

    action: Action
    who: Identity
    path: str
    before: dict[str, Any]
    after: dict[str, Any]
    etag: str | None = None

    @property
    def line(self) -> str:
        """Return the change for people: old → new."""
        return f"{SIGNS[self.action]} {self.who}{'  ' if self._words else ''}{self._words}"

    @property
    def _words(self) -> str:
        if self.action == "change":
            return ", ".join(
                f"{name}: {value_text(name, self.before[name])} → {value_text(name, self.after[name])}"
                for name in self.after
            )
        facts = self.after if self.action == "create" else self.before
        named = {self.who.kind.owner, *self.who.kind.named_by} if self.who.owner else set(self.who.kind.named_by)
        return ", ".join(f"{name}: {value_text(name, value)}" for name, value in facts.items() if name not in named)

    @property
    def data(self) -> dict[str, Any]:
        """Return the change for programs."""
        return {"action": self.action, "what": str(self.who), "before": self.before, "after": self.after}


@dataclass(frozen=True)
class Plan:
    """Changes to make, and objects that exist without being declared."""

    changes: list[Change]
    left_alone: list[Identity]


def value_text(name: str, value: Any) -> str:
    """Return a field's value in a difference; a quota without a limit must not look like a quota of nothing."""
    if value is None:
        return "unlimited" if name in ("hard", "borrowing_limit", "lending_limit") else "none"
    return str(value)


def make(declared: Declared, rows: Iterable[Row], *, prune: bool) -> Plan:
    """Plan creations and changes; with `prune` removals too."""
    there = {row.who: row for row in rows}
    changes = [_toward(who, values, there.get(who)) for who, values in declared.items.items()]
    surplus = [row for who, row in there.items() if who not in declared.items and _is_surplus(declared, who)]
    if prune:
        changes += [Change("remove", row.who, row.path, dict(row.values), {}, row.etag) for row in surplus]
    return Plan(
        sorted((change for change in changes if change is not None), key=lambda change: _rank(change, declared)),
        [] if prune else [row.who for row in surplus],
    )


def _toward(who: Identity, values: dict[str, Any], row: Row | None) -> Change | None:
    if row is None:
        of_owner = {who.kind.owner: who.owner} if who.owner and "{tenant}" not in who.kind.path else {}
        return Change("create", who, collection(who.kind, who.owner), {}, {**of_owner, **values})
    after = {name: value for name, value in values.items() if row.values.get(name) != value}
    if not after:
        return None
    before = {name: row.values.get(name) for name in after}
    return Change("change", who, row.path, before, after, row.etag)


def _is_surplus(declared: Declared, who: Identity) -> bool:
    """Return True for an object that its owner's list omits; pools, organisations and tenants are never removed."""
    return who.owner is not None and (who.owner, who.kind) in declared.whole


def _rank(change: Change, declared: Declared) -> tuple[int, int, str]:
    """Return the order: pools, organisations from the top, tenants; then decreases before increases.

    So a quota can move between tenants. Quotas of organisations grow before tenants move there, and shrink last.
    """
    kind, words = change.who.kind, str(change.who)
    if kind is ORGANISATION:
        return 1, _depth(change.who, declared), words
    if kind is ORGANISATION_QUOTA:
        return (10 if change.action == "remove" or _lowers(change) else 2), 0, words
    if change.action == "remove":
        # A member's limit is removed before the member.
        return (5 if kind is MEMBER else 4), 0, words
    if kind is QUOTA:
        return (6 if _lowers(change) else 7), 0, words
    return {POOL: 0, TENANT: 3, MEMBER: 8}.get(kind, 9), 0, words


def _depth(who: Identity, declared: Declared) -> int:
    """Return the number of organisations above this one in the files."""
    depth, above = 0, declared.items.get(who, {}).get("parent")
    # The server refuses a circle.
    while above is not None and depth < len(declared.items):
        depth, above = depth + 1, declared.items.get(Identity(ORGANISATION, None, (above,)), {}).get("parent")
    return depth


def _lowers(change: Change) -> bool:
    if change.action != "change" or "hard" not in change.after:
        return False
    before, after = change.before["hard"], change.after["hard"]
    return after is not None and (before is None or after < before)
