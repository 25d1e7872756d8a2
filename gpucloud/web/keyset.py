"""Keyset pagination of long lists on web pages: the cost of a page does not grow with the list.

Nothing is counted and no offset is skipped: `?before=` and `?after=` hold the sort keys of a row, so a list that grows
meanwhile shows no row twice. The last key is the primary key: no two rows are equal.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Generic, TypeVar

from django.core import signing
from django.db.models import F, Model, Q, QuerySet
from django.http import QueryDict

PER_PAGE = 50
LARGEST_KEY = 2**63 - 1
SALT = "keyset"

M = TypeVar("M", bound=Model)
Cursor = int | str


@dataclass(frozen=True)
class Key:
    """One sort key: an expression or a field's name, and its direction. Nulls come last in either direction.

    `nullable` is False for values that are never null: then an index serves both directions.
    """

    expression: Any
    descending: bool = False
    nullable: bool = True

    def reversed(self) -> "Key":
        """Return the same key in the other direction."""
        return replace(self, descending=not self.descending)


NEWEST = (Key("pk", descending=True),)


@dataclass(frozen=True)
class KeysetPage(Generic[M]):
    """One keyset page: rows, and the cursors of the page before and the page behind; None: there is no such page."""

    rows: list[M]
    newer: Cursor | None
    older: Cursor | None


def keyset_page(
    rows: QuerySet[M, M], query: QueryDict, keys: Sequence[Key] = NEWEST, *, sort: str = ""
) -> KeysetPage[M]:
    """Return the page that the URL asks for; the first page if it names no valid cursor of this order.

    `keys` end with the primary key; `sort` names the order, so that a cursor of another one is not used.
    """
    rows = rows.annotate(**{f"sort_{at}": _expression(key) for at, key in enumerate(keys[:-1])})
    before, after = _values(query.get("before"), keys, sort), _values(query.get("after"), keys, sort)
    if after is not None:
        # One row more than is shown tells whether there is another page.
        found = list(_beyond(rows, keys, after, back=True)[: PER_PAGE + 1])
        if len(found) > PER_PAGE:
            shown = found[PER_PAGE - 1 :: -1]
            return KeysetPage(shown, newer=_cursor(shown[0], keys, sort), older=_cursor(shown[-1], keys, sort))
        # Fewer than a full page: show the first page.
        before = None
    found = list(_beyond(rows, keys, before)[: PER_PAGE + 1])
    shown, more = found[:PER_PAGE], len(found) > PER_PAGE
    newer = None if before is None else _cursor(shown[0], keys, sort) if shown else _before_the_end(keys, before)
    return KeysetPage(shown, newer=newer, older=_cursor(shown[-1], keys, sort) if more else None)


def ordered(rows: QuerySet[M, M], keys: Sequence[Key]) -> QuerySet[M, M]:
    """Return all rows in the order of the keys."""
    rows = rows.annotate(**{f"sort_{at}": _expression(key) for at, key in enumerate(keys[:-1])})
    return _beyond(rows, keys, None)


def _expression(key: Key) -> Any:
    return F(key.expression) if isinstance(key.expression, str) else key.expression


def _beyond(
    rows: QuerySet[M, M], keys: Sequence[Key], values: list[Any] | None, *, back: bool = False
) -> QuerySet[M, M]:
    """Return the ordered rows behind these values; with `back` those before them, the nearest first."""
    order, behind, equal = [], Q(), Q()
    for at, key in enumerate(keys):
        name = "pk" if at == len(keys) - 1 else f"sort_{at}"
        descending = key.descending != back
        nulls: dict[str, Any] = {"nulls_first" if back else "nulls_last": True}
        if not key.nullable or name == "pk":
            nulls = {}
        order.append(F(name).desc(**nulls) if descending else F(name).asc(**nulls))
        if values is not None:
            value = values[at]
            behind |= equal & _past(name, value, descending=descending, nulls=name != "pk" and not back)
            equal &= Q(**{f"{name}__isnull": True}) if value is None else Q(**{name: value})
    return rows.filter(behind).order_by(*order)


def _past(name: str, value: Any, *, descending: bool, nulls: bool) -> Q:
    """Return the condition of rows past the value in this key alone; `nulls` come last, else first."""
    if value is None:
        return Q(pk__in=[]) if nulls else Q(**{f"{name}__isnull": False})
    past = Q(**{f"{name}__{'lt' if descending else 'gt'}": value})
    return past | Q(**{f"{name}__isnull": True}) if nulls else past


def _cursor(row: Any, keys: Sequence[Key], sort: str) -> Cursor:
    """Return the cursor of the row; that of an order by the primary key alone is the key."""
    if len(keys) == 1:
        return int(row.pk)
    values = [getattr(row, f"sort_{at}") for at in range(len(keys) - 1)]
    return signing.dumps([sort, *map(_plain, values), row.pk], salt=SALT)


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    return value if isinstance(value, bool | int | float | None) else str(value)


def _before_the_end(keys: Sequence[Key], values: list[Any]) -> Cursor | None:
    """Return the cursor by which an empty page behind the end leads back; None leads to the first page only."""
    return values[0] - 1 if len(keys) == 1 and keys[0].descending else None


def _values(text: Any, keys: Sequence[Key], sort: str) -> list[Any] | None:
    """Return the values of a cursor from the URL; None if it cannot be one of this order."""
    if not text:
        return None
    if len(keys) == 1:
        plain = text.isascii() and text.isdecimal() and len(text) <= len(str(LARGEST_KEY))
        return [min(int(text), LARGEST_KEY)] if plain else None
    try:
        named, *values = signing.loads(text, salt=SALT)
    except (signing.BadSignature, ValueError):
        return None
    return values if named == sort and len(values) == len(keys) else None
