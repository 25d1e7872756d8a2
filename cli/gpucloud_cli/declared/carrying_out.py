"""Doing what a plan says, one change after the other, and saying exactly how far it came.

Every change is made at the version that the plan was made from: what somebody else changed meanwhile is not
overwritten.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from gpucloud_cli.api import Api
from gpucloud_cli.declared import present
from gpucloud_cli.declared.plan import Change, told
from gpucloud_cli.failures import Exit, Failure, Problem, Unreachable, exit_code


class Stopped(Failure):
    """Not everything was done."""

    def __init__(self, words: str, code: int) -> None:
        super().__init__(words)
        self.exit = code


@dataclass
class Outcome:
    """How far it came: in order, each change once."""

    applied: list[Change] = field(default_factory=list)
    failed: Change | None = None
    # Whether the failed one may have been done all the same: its answer was lost.
    unsure: bool = False
    why: str = ""
    code: int = Exit.DONE
    not_tried: list[Change] = field(default_factory=list)

    @property
    def data(self) -> list[dict[str, Any]]:
        """For programs."""
        told = [change.data | {"outcome": "applied"} for change in self.applied]
        if self.failed is not None:
            told.append(self.failed.data | {"outcome": "unknown" if self.unsure else "failed", "why": self.why})
        return told + [change.data | {"outcome": "not tried"} for change in self.not_tried]


def carry_out(api: Api, changes: list[Change], *, say: Callable[[str], None]) -> Outcome:
    """Until the first that fails."""
    outcome = Outcome()
    for position, change in enumerate(changes):
        try:
            _one(api, change)
        except Failure as failure:
            outcome.failed, outcome.why, outcome.code = change, str(failure), exit_code(failure)
            outcome.unsure = isinstance(failure, Unreachable)
            if isinstance(failure, Problem) and failure.status in (404, 412):
                outcome.why, outcome.code = _changed_meanwhile(api, change), Exit.REFUSED
            outcome.not_tried = changes[position + 1 :]
            return outcome
        say(f"applied: {change.line}")
        outcome.applied.append(change)
    return outcome


def _one(api: Api, change: Change) -> None:
    if change.action == "remove":
        api.delete(change.path, etag=change.etag)
    elif change.action == "create":
        api.post(change.path, change.after)
    elif change.etag is None:
        # A member has no version: to give a role and to change it is one request.
        collection = present.collection(change.who.kind, change.who.tenant)
        named = dict(zip(change.who.kind.named_by, change.who.names, strict=True))
        api.post(collection, named | change.after)
    else:
        api.patch(change.path, change.after, etag=change.etag)


def _changed_meanwhile(api: Api, change: Change) -> str:
    """What somebody else has made of it since the plan was made."""
    try:
        row = present.row(change.who.kind, api.get(change.path).body, change.who.tenant)
    except Problem:
        return f"{change.who} is gone: somebody has removed it since it was read"
    except Failure:
        return f"{change.who} was changed by somebody else since it was read"
    facts = [
        f"{name} was {told(name, value)} and is {told(name, row.values.get(name))}"
        for name, value in change.before.items()
        if row.values.get(name) != value
    ]
    words = "; ".join(facts) or "another field than those in the files"
    return f"{change.who} was changed by somebody else since it was read: {words}"


def report(outcome: Outcome) -> Stopped:
    """What to say of an outcome that is not whole."""
    assert outcome.failed is not None
    perhaps = " (its answer was lost: it may have been done)" if outcome.unsure else ""
    lines = [
        f"stopped after {len(outcome.applied)} of {len(outcome.applied) + 1 + len(outcome.not_tried)} changes",
        f"failed{perhaps}: {outcome.failed.line}",
        f"  {outcome.why}",
        *(f"not tried: {change.line}" for change in outcome.not_tried),
        "Apply again to go on: what is done stays done.",
    ]
    return Stopped("\n".join(lines), outcome.code)
