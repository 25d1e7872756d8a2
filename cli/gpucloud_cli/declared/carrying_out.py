"""Execution of a plan: one change after the other, with an exact report.

Every change is made at the version that the plan was made from: changes by somebody else meanwhile are not overwritten.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from gpucloud_cli.api import Api
from gpucloud_cli.declared import present
from gpucloud_cli.declared.plan import Change, value_text
from gpucloud_cli.failures import Exit, Failure, Problem, Unreachable, exit_code


class Stopped(Failure):
    """A change of the plan failed."""

    def __init__(self, words: str, code: int) -> None:
        super().__init__(words)
        self.exit = code


@dataclass
class Outcome:
    """Result of a plan: each change once, in order."""

    applied: list[Change] = field(default_factory=list)
    failed: Change | None = None
    # True if the failed change may have taken effect: its response was lost.
    unsure: bool = False
    why: str = ""
    code: int = Exit.DONE
    not_tried: list[Change] = field(default_factory=list)

    @property
    def data(self) -> list[dict[str, Any]]:
        """Return the outcome for programs."""
        rows = [change.data | {"outcome": "applied"} for change in self.applied]
        if self.failed is not None:
            rows.append(self.failed.data | {"outcome": "unknown" if self.unsure else "failed", "why": self.why})
        return rows + [change.data | {"outcome": "not tried"} for change in self.not_tried]


def carry_out(api: Api, changes: list[Change], *, say: Callable[[str], None]) -> Outcome:
    """Execute changes until the first failure."""
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
        # A member has no version: creating a role and changing it are the same request.
        collection = present.collection(change.who.kind, change.who.owner)
        named = dict(zip(change.who.kind.named_by, change.who.names, strict=True))
        api.post(collection, named | change.after)
    else:
        api.patch(change.path, change.after, etag=change.etag)


def _changed_meanwhile(api: Api, change: Change) -> str:
    """Return the changes that somebody else made since the plan."""
    try:
        row = present.row(change.who.kind, api.get(change.path).body, change.who.owner)
    except Problem:
        return f"{change.who} is gone: somebody has removed it since it was read"
    except Failure:
        return f"{change.who} was changed by somebody else since it was read"
    facts = [
        f"{name} was {value_text(name, value)} and is {value_text(name, row.values.get(name))}"
        for name, value in change.before.items()
        if row.values.get(name) != value
    ]
    words = "; ".join(facts) or "another field than those in the files"
    return f"{change.who} was changed by somebody else since it was read: {words}"


def report(outcome: Outcome) -> Stopped:
    """Return the report of an incomplete outcome."""
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
