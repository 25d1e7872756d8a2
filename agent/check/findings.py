"""`agent check`: the running agent's own findings, or this process's if no agent answers."""

from typing import Literal, NamedTuple

from agent import local_wire
from agent.check import everything
from agent.local_wire import Checked, Refusal, Request
from agent.settings import Settings
from agent.wire import Check

# Longer than the agent lets its own check take.
TIMEOUT_SECONDS = 60.0


class Findings(NamedTuple):
    """The findings, which process found them, and one sentence that says so."""

    checks: list[Check]
    seen_by: Literal["agent", "command"]
    words: str


def find(settings: Settings, *, here: bool) -> Findings:
    """Let the running agent check itself; check from this process if it does not, or if `here` asks for that."""
    answer = "--here was given" if here else _ask(settings)
    if isinstance(answer, Checked):
        words = f"Seen by the running agent (pid {answer.pid}), with the rights and the sandbox that it has."
        return Findings(answer.checks, "agent", words)
    words = f"Seen by this command, not by a running agent ({answer}): in the sandbox of its unit it may see less."
    return Findings(everything.check_everything(settings), "command", words)


def _ask(settings: Settings) -> Checked | str:
    """Return the agent's answer, or why there is none."""
    path = settings.run_dir / "agent.sock"
    try:
        answer = local_wire.ask(path, Request(ask="check"), seconds=TIMEOUT_SECONDS)
    except local_wire.Unreachable as error:
        return str(error).rstrip(".")
    if isinstance(answer, Refusal):
        return answer.detail.rstrip(".")
    if not isinstance(answer, Checked):
        return f"the answer at {path} is not valid"
    if answer.server != settings.server:
        return f"the one at {path} belongs to {answer.server}"
    return answer
