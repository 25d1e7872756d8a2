"""Jobs in the frames of both sides: commands that a node's agent starts under claims.

A *job* is a command. One *run* is one attempt to start it on one node; its uid names it everywhere. The server orders
runs by `JobRun` in its desired state; the agent reports each of them by `JobState`, and sends its output in pieces.
"""

from collections.abc import Iterable
from typing import Annotated, Final, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from agent.wire_frames import Bytes, Count, Frame, Record, Seconds, Sentence, Uid, Word

# Of one node at a time: also those that have ended and whose output the server does not have yet.
MAX_RUNS: Final = 1024
# Of all runs of a frame, as JSON: without it, tenants' long commands could make a frame that no agent takes.
MAX_BYTES: Final = 32 << 20
MAX_WORDS, MAX_WORD, MAX_VARIABLES = 256, 32 << 10, 256
LEAST_OUTPUT_BYTES, OUTPUT_BYTES, MOST_OUTPUT_BYTES = 1 << 10, 16 << 20, 64 << 20
MAX_CHUNK_BYTES: Final = 64 << 10

# A container image with its registry: "/" and ":" alone would let an engine read files (`dir:/…`), "-" give it options.
IMAGE: Final = (
    r"^(localhost|[a-z0-9][a-z0-9-]*(\.[a-z0-9-]+)+|[a-z0-9][a-z0-9-]*(?=:[0-9]))(:[0-9]{1,5})?"
    r"(/[a-z0-9]+([._-]+[a-z0-9]+)*)+(:[A-Za-z0-9_][A-Za-z0-9._-]{0,127})?(@sha256:[0-9a-f]{64})?\Z"
)
MAX_IMAGE: Final = 300

# No program can have a word with a NUL.
Argument = Annotated[str, Meta(max_length=MAX_WORD, pattern=r"^[^\x00]*$")]
VariableName = Annotated[str, Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,127}$")]
RunState = Literal["waiting", "running", "ended", "refused"]


# More bytes than any server's setting allows to upload.
MOST_FILES_BYTES: Final = 4 << 30


class Files(Record, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """An archive that is unpacked in the run's working directory; the agent fetches it from the server."""

    sha256: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$")]
    bytes: Annotated[int, Meta(ge=1, le=MOST_FILES_BYTES)]


class Git(Record, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=False):
    """A repository that the run clones into its working directory."""

    url: Annotated[str, Meta(pattern=r"^[a-z]+://[!-~]*$", max_length=1000)]
    # A branch, a tag or a commit; "": the repository's own choice.
    ref: Annotated[str, Meta(pattern=r"^([A-Za-z0-9_][A-Za-z0-9._/+@-]*)?$", max_length=200)] = ""


class JobRun(Record, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=False):
    """One run, as wanted. It starts once, when all assignments of its claim are in force on the node."""

    uid: Uid
    claim_uid: Uid
    # The program and its arguments.
    command: Annotated[list[Argument], Meta(min_length=1, max_length=MAX_WORDS)]
    # Variables that the launch under the claim sets win.
    environment: Annotated[dict[VariableName, Argument], Meta(max_length=MAX_VARIABLES)] = {}
    # What is in its working directory before the command begins.
    files: Files | None = None
    git: Git | None = None
    # Its time limit; 0: none.
    seconds: Annotated[int, Meta(ge=0, le=2**31 - 1)] = 0
    # The most output that is kept.
    output_bytes: Annotated[int, Meta(ge=LEAST_OUTPUT_BYTES, le=MOST_OUTPUT_BYTES)] = OUTPUT_BYTES
    # The tenant's number, from which the user is derived as which it runs.
    owner: Count = 0
    # End it: SIGTERM, and SIGKILL 10 s later.
    stop: bool = False
    # The container image in which the command runs; "": none, it runs on the node as it is.
    image: Annotated[str, Meta(max_length=MAX_IMAGE, pattern=rf"^\Z|{IMAGE}")] = ""
    # The server has seen it running: an agent that does not know it must not start it again.
    started: bool = False
    # Bytes of its output that the server has.
    stored: Bytes = 0
    # Its program is Jupyter, which listens in the run's home (`agent.jobs.notebooks`).
    notebook: bool = False


def fit_runs(runs: Iterable[JobRun]) -> list[JobRun]:
    """Return the runs that go into one frame, the earlier ones first, those that have started before all others."""
    fitting: list[JobRun] = []
    left = MAX_BYTES
    for run in sorted(runs, key=lambda run: not run.started):
        size = len(msgspec.json.encode(run)) + 1
        if size <= left and len(fitting) < MAX_RUNS:
            fitting.append(run)
            left -= size
    return fitting


class JobState(Record, frozen=True, kw_only=True):
    """One run, as the agent sees it."""

    uid: Uid
    state: RunState
    # Of an ended one: 128 + the signal if a signal ended it, None if it is not known.
    exit_code: Annotated[int, Meta(ge=0, le=255)] | None = None
    # `refused`: why, and what to do; `ended`: why, unless it ended by itself; `waiting`: what it waits for.
    reason: Sentence | None = None
    started_at: Seconds | None = None
    ended_at: Seconds | None = None
    # The length of its kept output so far, and of that which was not kept.
    output_bytes: Bytes = 0
    dropped_bytes: Bytes = 0
    # The image that runs, by its digest; left out if there is none.
    image: Annotated[str, Meta(max_length=MAX_IMAGE + 80)] | UnsetType = UNSET
    # Since a notebook was used; left out if that is not known.
    idle_seconds: Annotated[int, Meta(ge=0, le=2**31 - 1)] | UnsetType = UNSET


class Output(Frame, frozen=True, kw_only=True):
    """Agent → server: a piece of a run's kept output, from this offset on. The server answers by `Stored`."""

    uid: Uid
    offset: Bytes
    data: Annotated[bytes, Meta(max_length=MAX_CHUNK_BYTES)]


class Tunnel(Frame, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """Server → agent, if its hello says `tunnels`: dial /ws/tunnel/ with this ticket, for a terminal in the run."""

    uid: Uid
    run_uid: Uid
    ticket: Word
    # True: not for a terminal, but for a connection to the run's notebook.
    stream: bool = False


class Stored(Frame, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """Server → agent, only as an answer to `Output`: all of the run's output before this offset is stored."""

    uid: Uid
    bytes: Bytes
