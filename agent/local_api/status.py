"""`python -m agent status`: the claims of this machine's agent, as a table or as JSON."""

from pathlib import Path

import msgspec

from agent import local_wire
from agent.local_wire import Held, Refusal, Request, Status

MIB = 1 << 20
COLUMNS = ("CLAIM", "TENANT", "GPU", "STATE", "GEN", "CORE", "POLICY", "ALLOTTED", "MEMORY MIB", "PROCESSES")


class StatusError(Exception):
    """Failure to get the agent's status; the message is for people."""


def ask(run_dir: Path) -> Status:
    """Return the status of the agent in this run directory. Raises StatusError."""
    try:
        answer = local_wire.ask(run_dir / "agent.sock", Request(ask="status"))
    except local_wire.Unreachable as error:
        raise StatusError(str(error)) from error
    if isinstance(answer, Refusal):
        raise StatusError(answer.detail)
    if not isinstance(answer, Status):
        raise StatusError("The agent's answer is not valid.")
    return answer


def as_json(status: Status) -> str:
    """Return the whole status as JSON."""
    return msgspec.json.format(msgspec.json.encode(status), indent=2).decode()


def as_table(status: Status) -> str:
    """Return the whole status as a table."""
    link = "connected" if status.connected else "not connected"
    gpus = f"{status.gpus} GPUs" if status.gpu_problem is None else status.gpu_problem
    frame = "none" if status.frame is None else status.frame
    unsent = f"{status.usage_unacknowledged} samples to send"
    arbiter = "the arbiter runs" if status.arbiter.running else status.arbiter.problem or "the arbiter is being started"
    lines = [f"node {status.node or '(not enrolled)'} · {gpus} · {status.server}: {link} · frame {frame} · {unsent}"]
    lines.append(f"{arbiter} · restarted {status.arbiter.restarts} times")
    lines += [found.detail for found in status.audit.findings]
    if status.audit.unseen:
        lines.append(f"{status.audit.unseen} processes on the GPUs cannot be seen from the agent's pid namespace")
    if not status.assignments:
        return "\n".join([*lines, "no assignments"])
    rows = [COLUMNS, *(_row(held) for held in status.assignments)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(COLUMNS))]
    lines += ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    lines += [f"{held.assignment}: {held.reason}" for held in status.assignments if held.reason]
    return "\n".join(lines)


def _row(held: Held) -> tuple[str, ...]:
    return (
        held.claim,
        held.tenant,
        held.gpu,
        held.state,
        str(held.generation),
        f"{held.core_request}–{held.core_limit} %",
        held.sharing.policy,
        "-" if held.allotted_percent is None else f"{held.allotted_percent:.1f} %",
        f"{held.memory_bytes // MIB}/{held.memory_limit_bytes // MIB}",
        " ".join(map(str, held.processes)) or "-",
    )
