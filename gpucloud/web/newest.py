"""Parts of long lists for pages, newest first, by key: what a part costs does not grow with the list.

Nothing is counted and nothing is skipped: `?before=` and `?after=` say from which row on, so a list that grows
meanwhile shows no row twice.
"""

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from django.db.models import Model, QuerySet
from django.http import QueryDict

PER_PAGE = 50
LARGEST_KEY = 2**63 - 1

M = TypeVar("M", bound=Model)


@dataclass(frozen=True)
class Part(Generic[M]):
    """Some rows, and the keys after and before which there are more; None: there are none."""

    rows: list[M]
    newer: int | None
    older: int | None


def part_of(rows: QuerySet[M, M], asked: QueryDict) -> Part[M]:
    """The part that the URL asks for; the newest where it asks for none, or for what cannot be."""
    before, after = _key(asked.get("before")), _key(asked.get("after"))
    if after is not None:
        # One more than is shown says whether there are more.
        found = list(rows.filter(pk__gt=after).order_by("pk")[: PER_PAGE + 1])
        if len(found) > PER_PAGE:
            shown = found[PER_PAGE - 1 :: -1]
            return Part(shown, newer=shown[0].pk, older=shown[-1].pk)
        # The newest part, whole.
        before = None
    found = list((rows if before is None else rows.filter(pk__lt=before)).order_by("-pk")[: PER_PAGE + 1])
    shown, more = found[:PER_PAGE], len(found) > PER_PAGE
    newer = None if before is None else (shown[0].pk if shown else before - 1)
    return Part(shown, newer=newer, older=shown[-1].pk if more else None)


def _key(text: Any) -> int | None:
    """Of what a URL says, if it can be one."""
    if not text or not (text.isascii() and text.isdecimal()) or len(text) > len(str(LARGEST_KEY)):
        return None
    return min(int(text), LARGEST_KEY)
