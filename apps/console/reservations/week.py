"""A pool's week as its page draws it: a row per GPU, a box per hold, by its time and its core."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.utils import timezone
from django.utils.dateformat import format as dated
from django.utils.translation import gettext as _

from apps.console.shell.bars import COLOURS

A_WEEK = timedelta(days=7)
WHOLE = 100


@dataclass(frozen=True, slots=True)
class Box:
    """One hold; `left` and `width` in percent of the week, `top` and `height` in percent of the GPU's core."""

    left: float
    width: float
    top: int
    height: int
    # One of the page's colours for a hold that the reader may know, else none.
    colour: int | None
    is_claim: bool
    title: str


@dataclass(frozen=True, slots=True)
class Row:
    """One GPU's week."""

    node: str
    index: int
    model: str
    boxes: list[Box]

    @property
    def words(self) -> str:
        """The text of the row for screen readers."""
        if not self.boxes:
            return _("{0}, GPU {1}: free all week").format(self.node, self.index)
        return f"{self.node}, GPU {self.index}: {'; '.join(box.title for box in self.boxes)}"


def position(moment: datetime, begin: datetime) -> float:
    """Return the moment's place in the week in percent, by the reader's clock: days are equally wide in every week."""
    at, zero = (timezone.localtime(one).replace(tzinfo=None) for one in (moment, begin))
    return 100 * (at - zero) / A_WEEK


def monday(moment: datetime) -> datetime:
    """Return the beginning of the week of `moment`."""
    day = timezone.localtime(moment).replace(hour=0, minute=0, second=0, microsecond=0)
    return day - timedelta(days=day.weekday())


def rows_of(gpus: Sequence[Mapping[str, Any]], begin: datetime) -> list[Row]:
    """Return the rows of a calendar's week. A hold that the reader knows has the same colour on every row."""
    names = sorted({_colour_key(hold) for gpu in gpus for hold in gpu["holds"] if hold["uid"] is not None})
    colours = {name: number % COLOURS for number, name in enumerate(names)}
    return [Row(gpu["node"], gpu["index"], gpu["model"], _boxes(gpu["holds"], begin, colours)) for gpu in gpus]


def _colour_key(hold: Mapping[str, Any]) -> str:
    """Return the key of the colour: a claim in a reservation has the reservation's colour."""
    return str(hold["reservation"] or hold["uid"])


def _boxes(holds: Sequence[Mapping[str, Any]], begin: datetime, colours: Mapping[str, int]) -> list[Box]:
    end, boxes = begin + A_WEEK, list[Box]()
    for hold in holds:
        # Use without a claim may exceed the whole.
        height = min(hold["core"], WHOLE)
        since, until = max(begin, hold["start_at"] or begin), min(end, hold["end_at"] or end)
        left, right = (position(moment, begin) for moment in (since, until))
        box = Box(
            left=left,
            width=max(0.0, right - left),
            top=_free(boxes, left, right, height),
            height=height,
            colour=colours[_colour_key(hold)] if hold["uid"] is not None else None,
            is_claim=hold["kind"] == "claim",
            title=_title(hold),
        )
        boxes.append(box)
    return boxes


def _free(boxes: Sequence[Box], left: float, right: float, height: int) -> int:
    """Return the highest free place for a box; the bottom if core was lent twice."""
    beside = [box for box in boxes if box.left < right and left < box.left + box.width]
    tops = sorted({0, *(box.top + box.height for box in beside)})
    for top in tops:
        if top + height <= WHOLE and all(top + height <= box.top or box.top + box.height <= top for box in beside):
            return top
    return max(0, WHOLE - height)


def _title(hold: Mapping[str, Any]) -> str:
    return f"{_owner(hold)}, {hold['core']} % {_period(hold)}"


def _owner(hold: Mapping[str, Any]) -> str:
    if hold["kind"] == "outside":
        return _("pods without a claim")
    others = _("a claim of another tenant") if hold["kind"] == "claim" else _("a reservation of another tenant")
    return f"{hold['tenant']}/{hold['name']}" if hold["uid"] is not None else others


def _period(hold: Mapping[str, Any]) -> str:
    begin, end = hold["start_at"], hold["end_at"]
    if end:
        said = _("from {0} to {1}") if begin else _("to {1}")
    else:
        said = _("from {0} without an end") if begin else _("without an end")
    first = dated(timezone.localtime(begin), "D H:i") if begin else ""
    return said.format(first, dated(timezone.localtime(end), "D d M H:i") if end else "")
