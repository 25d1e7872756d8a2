"""`python -m agent status`: the claims and runs of this machine's agent, as tables or as JSON."""

import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from agent import local_wire
from agent.local_wire import Held, Refusal, Request, Run, Status

KIB, MIB = 1 << 10, 1 << 20
COLUMNS = ("CLAIM", "TENANT", "GPU", "STATE", "GEN", "CORE", "POLICY", "ALLOTTED", "MEMORY MIB", "PROCESSES")
COLUMNS_OF_RUNS = ("RUN", "CLAIM", "STATE", "EXIT", "TIME", "OUTPUT KIB", "IMAGE", "COMMAND")


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
    """Return the whole status as tables."""
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
    lines += _table(COLUMNS, [_row(held) for held in status.assignments]) or ["no assignments"]
    lines += [f"{held.assignment}: {held.reason}" for held in status.assignments if held.reason]
    now = time.time()
    lines += _table(COLUMNS_OF_RUNS, [_row_of_run(run, now) for run in status.runs])
    lines += [f"{run.uid}: {run.reason}" for run in status.runs if run.reason]
    return "\n".join(lines)


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the table's lines; none without rows."""
    if not rows:
        return []
    every = [columns, *rows]
    widths = [max(len(row[column]) for row in every) for column in range(len(columns))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in every]


def _row_of_run(run: Run, now: float) -> tuple[str, ...]:
    seconds = None if run.started_at is None else (run.ended_at or now) - run.started_at
    return (
        run.uid,
        run.claim,
        run.state,
        "-" if run.exit_code is None else str(run.exit_code),
        "-" if seconds is None else f"{seconds:.0f} s",
        str((run.output_bytes + run.dropped_bytes) // KIB),
        run.image or "-",
        run.command,
    )


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
