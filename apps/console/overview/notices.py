"""Notices of the overview's first panel, and their groups: equal problems are one notice."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from gpucloud.web.badges import Tone

# A list that needs scrolling hides what it should show; the lists have the rest.
MOST: Final = 6
# The rows of one kind that are read, so that equal ones can be counted: as many as a page of a list shows.
READ: Final = 50


@dataclass(frozen=True, slots=True)
class Notice:
    """A problem to look at, or several equal ones: `objects` has their names and addresses.

    `name` names the object in a group, `many` is the group's title with a place for the number; without them the notice
    stands alone.
    """

    tone: Tone
    icon: str
    title: str
    detail: str
    url: str
    since: datetime | None = None
    name: str = ""
    many: str = ""
    objects: tuple[tuple[str, str], ...] = ()
    # Objects of the group beyond those named.
    more: int = 0


def grouped(notices: Iterable[Notice], *, most: int | None = None, count: int | None = None) -> list[Notice]:
    """Return the notices with equal ones put together, in the order of the first of each.

    `most`: the number of rows to which the notices were limited; None if they are all. `count`: the number of objects,
    if it is known.
    """
    groups: dict[object, list[Notice]] = {}
    for at, notice in enumerate(notices):
        key = (notice.tone, notice.many, notice.detail) if notice.many else at
        groups.setdefault(key, []).append(notice)
    known = count if len(groups) == 1 else None
    return [_together(some, most, known) if len(some) > 1 else some[0] for some in groups.values()]


def _together(notices: list[Notice], most: int | None, count: int | None) -> Notice:
    is_cut = count is None and most is not None and len(notices) >= most
    # Counted a moment before the rows were read.
    count = max(count or 0, len(notices))
    number = f"{count:,}+" if is_cut else f"{count:,}"
    since = min((notice.since for notice in notices if notice.since is not None), default=None)
    named = tuple((notice.name, notice.url) for notice in notices[:MOST])
    title = notices[0].many.format(number)
    return replace(notices[0], title=title, since=since, objects=named, more=max(0, count - MOST))
