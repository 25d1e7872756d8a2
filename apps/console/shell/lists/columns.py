"""Columns of a list, and the saved views above it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from django.db.models import Case, IntegerField, Value, When
from django.db.models.lookups import Exact
from django.http import QueryDict

from gpucloud.web.keyset import Key
from gpucloud.web.natural_order import natural_key

if TYPE_CHECKING:
    from django_stubs_ext import StrPromise


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its title, the name and keys of its order (none: it cannot be sorted), its classes and its term.

    `word` is the glossary's term that explains the title.
    """

    title: "StrPromise | str"
    key: str = ""
    keys: tuple[Key, ...] = ()
    css: str = ""
    word: str = ""


def column(title: "StrPromise | str", key: str = "", *by: Any, css: str = "", word: str = "") -> Column:
    """Return a column that is sorted by these fields or expressions; by the field of its name if none is given."""
    keys = tuple(part if isinstance(part, Key) else Key(part) for part in (by or (key,))) if key else ()
    return Column(title, key, keys, css, word)


def number(title: "StrPromise | str", key: str = "", *by: Any, css: str = "num", word: str = "") -> Column:
    """Return a column of numbers or times, aligned to the right."""
    return column(title, key, *by, css=css, word=word)


def named(title: "StrPromise | str", key: str = "name", path: str = "") -> Column:
    """Return a column of names in natural order."""
    return column(title, key, Key(natural_key(path or key), nullable=False))


@dataclass(frozen=True, slots=True)
class Head:
    """The head of a column: the order that a click brings, and the present one (`ascending`, `descending` or empty)."""

    column: Column
    sort: str
    sorted: str


@dataclass(frozen=True, slots=True)
class SavedView:
    """A named view of the list: its filters and order as they stand in the URL."""

    title: "StrPromise | str"
    query: str = ""
    current: bool = field(default=False)

    def shown_at(self, query: QueryDict) -> "SavedView":
        """Return the view, marked if the URL shows it."""
        wanted = {name: value for name, value in query.items() if value and name not in ("before", "after")}
        return SavedView(self.title, self.query, current=wanted == QueryDict(self.query).dict())


def rank(values: Sequence[str], expression: Any) -> Key:
    """Return the key that sorts rows by the position of the expression's value here; others come last."""
    whens = [When(Exact(expression, Value(value)), then=Value(at)) for at, value in enumerate(values)]
    return Key(Case(*whens, default=Value(len(values)), output_field=IntegerField()))
