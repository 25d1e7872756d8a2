"""The wire format of `<run dir>/agent.sock`: one JSON line each way, then the connection closes.

Everyone who can reach the socket may ask; the claim's secret opens a claim. `status` and `check` answer only the
agent's own user and root: one names every tenant on the node, the other takes time.
"""

import socket
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from agent.wire import AssignmentState, AuditPolicy, Check, Count, GpuProcess, Sharing, Uid
from agent.wire_jobs import RunState

MAX_REQUEST_BYTES = 4096
MAX_ANSWER_BYTES = 4 << 20
TIMEOUT_SECONDS = 5.0

# The reason of a refusal; the words beside it are for people.
Code = Literal[
    "bad-request", "too-large", "too-slow", "busy", "unknown-claim", "wrong-secret", "not-in-force", "releasing",
    "failed", "wrong-user", "not-allowed", "suspended",
]  # fmt: skip
# Refusals that time may cure: the agent may not have received a new claim yet.
PASSING: frozenset[str] = frozenset({"unknown-claim", "not-in-force", "busy"})


class Request(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A request: run under a claim, let a user's programs in, report the status, or run the self-check.

    `environment`: register the caller under the claim. `page`: let the user's programs write its usage page. `status`:
    list the assignments and the runs of jobs. `check`: run the self-check.
    """

    ask: Literal["environment", "page", "status", "check"] = "environment"
    claim: Uid | None = None
    secret: Annotated[str, Meta(max_length=512)] | None = None
    # For `page`, a user and a group; the caller's own if it is left out.
    user: tuple[Count, Count] | None = None


class Answer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="answer", tag=str.lower):
    """The agent's answer; its class's name in lower case is the `answer` field."""


class Environment(Answer, frozen=True, kw_only=True):
    """Admission: the caller is registered under the claim and may start its program with these variables."""

    claim: Uid
    # Set as they are.
    set: dict[str, str]
    # Put before, and after, the caller's values, separated by colons.
    prepend: dict[str, str]
    append: dict[str, str]


class Refusal(Answer, frozen=True, kw_only=True):
    """Refusal: nothing was changed."""

    code: Code
    detail: str


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """One assignment that the agent manages."""

    claim: str
    assignment: str
    tenant: str
    gpu: str
    state: AssignmentState
    reason: str | None
    generation: int
    core_request: int
    core_limit: int
    sharing: Sharing
    # The percent that the arbiter allots at present; null if none runs.
    allotted_percent: float | None
    memory_bytes: int
    memory_limit_bytes: int
    processes: list[int]


# The handling of a GPU process that no limit holds: reported, ended if it belongs to a claim, or not audited.
AuditMode = Literal["warn", "kill", "off"]


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU process that no limit holds."""

    code: str
    detail: str
    process: GpuProcess


class AuditStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The present findings of the audit of the GPUs' processes."""

    mode: AuditMode | AuditPolicy
    findings: list[Found]
    # Processes on the GPUs that the agent cannot see from its pid namespace.
    unseen: int


class ArbiterStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The state of the arbiter, which gives the claims of a GPU their turns."""

    running: bool
    pid: int | None
    # The number of restarts.
    restarts: int
    # The reason why it does not run, or how the one before ended.
    problem: str | None


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a job that the agent manages."""

    uid: str
    claim: str
    state: RunState
    reason: str | None
    exit_code: int | None
    # By the machine's clock; null before its program executes, and before its end.
    started_at: float | None
    ended_at: float | None
    output_bytes: int
    dropped_bytes: int
    # The container image, by its digest once that is known; "": none.
    image: str
    # As a shell would take it, its beginning if it is long.
    command: str


class Status(Answer, frozen=True, kw_only=True):
    """The status of the whole agent."""

    node: str
    server: str
    connected: bool
    frame: int | None
    gpus: int
    gpu_problem: str | None
    usage_unacknowledged: int
    arbiter: ArbiterStatus
    audit: AuditStatus
    assignments: list[Held]
    # Agents of older versions say nothing of them.
    runs: list[Run] = []


class Checked(Answer, frozen=True, kw_only=True):
    """The self-check's findings, and the agent that ran it."""

    server: str
    pid: int
    checks: list[Check]


class Unreachable(Exception):
    """Failure to reach an agent at this socket; the message says what was tried."""


def ask(path: Path, request: Request, *, seconds: float = TIMEOUT_SECONDS) -> Environment | Refusal | Status | Checked:
    """Ask the agent; block for up to `seconds`. Raises Unreachable."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
            peer.settimeout(seconds)
            peer.connect(str(path))
            peer.sendall(msgspec.json.encode(request) + b"\n")
            with peer.makefile("rb") as lines:
                line = lines.readline(MAX_ANSWER_BYTES)
    except OSError as error:
        raise Unreachable(f"No agent answers at {path}: {error.strerror or error}.") from error
    try:
        return msgspec.json.decode(line, type=Environment | Refusal | Status | Checked)
    except msgspec.DecodeError as error:
        raise Unreachable(f"The process at {path} is not an agent of this version: {error}.") from error
