"""Keyset pagination of long lists on web pages, newest first: the cost of a page does not grow with the list.

Nothing is counted and no offset is skipped: `?before=` and `?after=` name a primary key, so a list that grows meanwhile
shows no row twice.
"""

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from django.db.models import Model, QuerySet
from django.http import QueryDict

PER_PAGE = 50
LARGEST_KEY = 2**63 - 1

M = TypeVar("M", bound=Model)


@dataclass(frozen=True)
class KeysetPage(Generic[M]):
    """One keyset page: rows, and the cursors of the newer and the older page; None: there is no such page."""

    rows: list[M]
    newer: int | None
    older: int | None


def keyset_page(rows: QuerySet[M, M], query: QueryDict) -> KeysetPage[M]:
    """Return the page that the URL asks for; the newest page if it names no valid key."""
    before, after = _key(query.get("before")), _key(query.get("after"))
    if after is not None:
        # One row more than is shown tells whether there is another page.
        found = list(rows.filter(pk__gt=after).order_by("pk")[: PER_PAGE + 1])
        if len(found) > PER_PAGE:
            shown = found[PER_PAGE - 1 :: -1]
            return KeysetPage(shown, newer=shown[0].pk, older=shown[-1].pk)
        # Fewer than a full page: show the newest page.
        before = None
    found = list((rows if before is None else rows.filter(pk__lt=before)).order_by("-pk")[: PER_PAGE + 1])
    shown, more = found[:PER_PAGE], len(found) > PER_PAGE
    newer = None if before is None else (shown[0].pk if shown else before - 1)
    return KeysetPage(shown, newer=newer, older=shown[-1].pk if more else None)


def _key(text: Any) -> int | None:
    """Parse a key from the URL; None if it cannot be one."""
    if not text or not (text.isascii() and text.isdecimal()) or len(text) > len(str(LARGEST_KEY)):
        return None
    return min(int(text), LARGEST_KEY)
