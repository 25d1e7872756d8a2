"""Actions on several selected rows of a list: a preview of each, then each by its own service.

The preview is the service itself in a transaction that is rolled back, so it cannot differ from the act. The
confirmation carries the version of each row that the preview showed: a row that has changed meanwhile is refused.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from django.db import DatabaseError, transaction
from django.utils.translation import gettext as _

from apps.console.shell.forms import describe_error
from gpucloud.errors import Conflict, GpucloudError

if TYPE_CHECKING:
    from django_stubs_ext import StrPromise

logger = logging.getLogger(__name__)

# Two pages of a list: each row is a transaction of its own, and the reader waits for all of them.
MOST_PICKED: Final = 100
# Longer than any name or uid with a version.
LONGEST: Final = 200


class NothingToDo(Conflict, code="nothing-to-do", title="Nothing to do"):
    """The row is as the action would leave it."""


@dataclass(frozen=True, slots=True)
class Action:
    """An action of a list.

    `carry_out` takes a row and the versions that its reader saw, changes it by its service, and returns the effect in
    words. It raises GpucloudError if the row cannot be changed.
    """

    key: str
    label: "StrPromise | str"
    carry_out: Callable[[Any, frozenset[int] | None], str]


@dataclass(frozen=True, slots=True)
class Pick:
    """A selected row as a form posts it: its name or uid, and the version that the preview showed."""

    key: str
    version: int | None = None

    @classmethod
    def parse(cls, text: str) -> "Pick":
        """Return the pick of `KEY` or `KEY@VERSION`."""
        key, _at, version = text[:LONGEST].partition("@")
        valid = version.isascii() and version.isdecimal() and len(version) < 10
        return cls(key.replace("\x00", ""), int(version) if valid else None)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The effect on one row, or the reason why there is none. `posted` is its pick with its version."""

    key: str
    row: Any
    refused: bool
    text: str

    @property
    def posted(self) -> str:
        """The pick of the confirmation."""
        return f"{self.key}@{self.row.version}"


def preview(action: Action, picks: Sequence[Pick], found: dict[str, Any]) -> list[Outcome]:
    """Return the effect on each row; nothing is changed."""
    outcomes = []
    for pick in picks:
        with transaction.atomic():
            outcomes.append(_try(action, pick, found.get(pick.key)))
            transaction.set_rollback(True)
    return outcomes


def carry_out(action: Action, picks: Sequence[Pick], found: dict[str, Any]) -> list[Outcome]:
    """Change each row in a transaction of its own, and return the results."""
    return [_try(action, pick, found.get(pick.key)) for pick in picks]


def _try(action: Action, pick: Pick, row: Any) -> Outcome:
    if row is None:
        return Outcome(pick.key, None, refused=True, text=_("It does not exist, or you may not see it."))
    try:
        # A savepoint within a preview; a transaction of its own otherwise.
        with transaction.atomic():
            text = action.carry_out(row, None if pick.version is None else frozenset({pick.version}))
    except GpucloudError as error:
        return Outcome(pick.key, row, refused=True, text=describe_error(error))
    except DatabaseError:
        # The rows before it are changed already: the reader must be told which.
        logger.exception("bulk %s of %s failed", action.key, pick.key)
        return Outcome(pick.key, row, refused=True, text=_("The database refused it: try again."))
    return Outcome(pick.key, row, refused=False, text=text)
