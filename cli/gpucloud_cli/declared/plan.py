"""Difference between files and server, as changes in an order that works."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from gpucloud_cli.declared.kinds import MEMBER, POOL, QUOTA, TENANT, Identity, Kind
from gpucloud_cli.declared.present import Row, collection

Action = Literal["create", "change", "remove"]
SIGNS: dict[Action, str] = {"create": "+", "change": "~", "remove": "-"}


@dataclass
class Declared:
    """The content of the files."""

    items: dict[Identity, dict[str, Any]] = field(default_factory=dict)
    # Lists that a tenant's document contains: entries that they omit are not wanted.
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
        named = {"tenant", *self.who.kind.named_by}
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
        sorted((change for change in changes if change is not None), key=_rank),
        [] if prune else [row.who for row in surplus],
    )


def _toward(who: Identity, values: dict[str, Any], row: Row | None) -> Change | None:
    if row is None:
        of_tenant = {"tenant": who.tenant} if who.tenant and "{tenant}" not in who.kind.path else {}
        return Change("create", who, collection(who.kind, who.tenant), {}, {**of_tenant, **values})
    after = {name: value for name, value in values.items() if row.values.get(name) != value}
    if not after:
        return None
    before = {name: row.values.get(name) for name in after}
    return Change("change", who, row.path, before, after, row.etag)


def _is_surplus(declared: Declared, who: Identity) -> bool:
    """Return True for an object that its tenant's list omits; tenants and pools are never removed."""
    return who.tenant is not None and (who.tenant, who.kind) in declared.whole


def _rank(change: Change) -> tuple[int, str]:
    """Return the order: pools, tenants; then decreases before increases, so that a quota can move between tenants."""
    kind = change.who.kind
    if change.action == "remove":
        # A member's limit is removed before the member.
        return (3 if kind is MEMBER else 2), str(change.who)
    if kind is QUOTA:
        return (4 if _lowers(change) else 5), str(change.who)
    return {POOL: 0, TENANT: 1, MEMBER: 6}.get(kind, 7), str(change.who)


def _lowers(change: Change) -> bool:
    if change.action != "change" or "hard" not in change.after:
        return False
    before, after = change.before["hard"], change.after["hard"]
    return after is not None and (before is None or after < before)
