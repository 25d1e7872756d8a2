"""Failures, and their exit codes by kind."""

import re
from collections.abc import Mapping
from enum import IntEnum
from typing import Any


class Exit(IntEnum):
    """Exit codes; pipelines decide by them, so they never change."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    REFUSED = 3
    NOT_ALLOWED = 4
    WAIT_RAN_OUT = 5
    TRY_AGAIN = 75
    CLAIM_ENDED = 76
    INTERRUPTED = 130


MEANINGS = {
    Exit.DONE: "done",
    Exit.FAILED: "failed, or not found",
    Exit.USAGE: "wrong usage: options, fields, files, an unknown tenant, organisation, pool or node",
    Exit.REFUSED: "refused by the present state: quota, conflict, changed meanwhile, can never fit",
    Exit.NOT_ALLOWED: "not allowed: token, role, scope",
    Exit.WAIT_RAN_OUT: "the wait ran out",
    Exit.TRY_AGAIN: "try again: the server does not answer, or is busy",
    Exit.CLAIM_ENDED: "the claim ended under the program of `gpucloud run`",
    Exit.INTERRUPTED: "interrupted (Ctrl-C)",
}


# Answered with 422, but only the fields are wrong: no change of the server's state would help.
WRONG_FIELDS = frozenset(
    {"field-missing", "range-invalid", "limit-below-request", "parts-missing", "period-invalid", "webhook-url"}
)
# A field in the server's words.
FIELD = re.compile(r"`(\w+)`|\b([a-z]+(?:_[a-z]+)+)\b")
# The object that is there already, by the fact that has its id, and the command for it.
PRESENT = {
    "quota": "quota change",
    "limit_range": "limit-range change",
    "member_limit": "member-limit change",
    "budget": "budget change",
    "price": "price remove",
}


class Failure(Exception):
    """The command failed; the message is for the person or the log that reads it."""

    exit: int = Exit.FAILED


class Usage(Failure):
    """The command line is invalid."""

    exit = Exit.USAGE


class WaitRanOut(Failure):
    """The wait ended without a result."""

    exit = Exit.WAIT_RAN_OUT


class Unreachable(Failure):
    """There was no usable response; the same request may succeed later."""

    exit = Exit.TRY_AGAIN


class Interrupted(Failure):
    """A signal ended the command."""

    def __init__(self, signal_number: int) -> None:
        super().__init__("interrupted")
        self.signal_number = signal_number


class Problem(Failure):
    """The server refused with RFC 9457 problem details."""

    def __init__(self, status: int, facts: dict[str, Any], *, options: Mapping[str, str] | None = None) -> None:
        # `options`: the command's option for each field of the API, for errors by field.
        self.status = status
        self.facts = facts
        super().__init__(_words(status, facts, options or {}))

    @property
    def code(self) -> str:
        """Return the stable name of the fact, such as `quota-exceeded`."""
        return _code(self.facts)


class Unknown(Problem):
    """A tenant, organisation, pool or node that was named does not exist, or the caller may not see it."""

    exit = Exit.USAGE

    def __init__(self, kind: str, name: str, problem: Problem) -> None:
        super().__init__(problem.status, {"title": f"There is no {kind} {name} that you may see."})


def exit_code(failure: Failure) -> int:
    """Return the process' exit code for this failure."""
    if isinstance(failure, Interrupted):
        return 128 + failure.signal_number
    if isinstance(failure, Problem) and not isinstance(failure, Unknown):
        return Exit.USAGE if failure.code in WRONG_FIELDS else _of_status(failure.status)
    return failure.exit


def _code(facts: Mapping[str, Any]) -> str:
    return str(facts.get("type", "")).rpartition("/")[2]


def _of_status(status: int) -> int:
    if status in (401, 403):
        return Exit.NOT_ALLOWED
    if status in (409, 412, 422, 428):
        return Exit.REFUSED
    if status == 429 or status >= 500:
        return Exit.TRY_AGAIN
    return Exit.USAGE if status == 400 else Exit.FAILED


def _words(status: int, facts: dict[str, Any], options: Mapping[str, str]) -> str:
    title, detail = facts.get("title"), facts.get("detail")
    fields = facts.get("errors")
    if isinstance(fields, dict) and fields:
        # The detail only says that there are invalid fields; these are the fields.
        lines = (f"  {options.get(name, name)}: {_errors_text(why)}" for name, why in fields.items())
        return _by_option("\n".join([f"{title or status}:", *lines]), options)
    words = ": ".join(str(part) for part in (title, detail) if part) or f"the server answered {status}"
    words = _by_option(words, options) if _code(facts) in WRONG_FIELDS else words
    return "\n".join([words, *_advice(facts)])


def _by_option(words: str, options: Mapping[str, str]) -> str:
    """Return the server's words with the command's options in place of the API's fields."""
    return FIELD.sub(lambda found: options.get(found[1] or found[2], found[0]), words)


def _advice(facts: dict[str, Any]) -> list[str]:
    """Return the command that changes what is there already instead."""
    if _code(facts) != "name-taken":
        return []
    return [f"See: gpucloud {command} {facts[fact]}" for fact, command in PRESENT.items() if fact in facts]


def _errors_text(why: Any) -> str:
    """Return a field's errors as one line; errors of a list are by position."""
    if isinstance(why, dict):
        return " ".join(map(_errors_text, why.values()))
    return " ".join(map(_errors_text, why)) if isinstance(why, list) else str(why)
