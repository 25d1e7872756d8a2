"""The wire format between a node's agent and the control plane: the one module that both sides import.

One websocket per node carries JSON frames. Every frame has ``v`` (the protocol's version) and ``type``; wrong types and
numbers out of range are refused when a frame is decoded, so that nothing past this module meets them. Unknown fields of
an agent's frame are refused too. Those of a server's frame are ignored: a server is upgraded before its agents, and a
change that an older agent may not ignore needs another ``v``, which it refuses. Sizes are bytes, shares are percent of
one GPU, times are Unix seconds.

The protocol is level-triggered: ``desired`` holds the node's *whole* wanted state and ``observed`` the whole state in
force, so a lost frame is repaired by the next one. A frame number only orders ``desired`` frames; the state in force is
reported per assignment, by generation.
"""

from typing import Annotated, Final, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from agent.wire_borrowing import BorrowedMemory as BorrowedMemory  # noqa: PLC0414 - both sides import this module only
from agent.wire_borrowing import Borrowing as Borrowing  # noqa: PLC0414 - likewise
from agent.wire_busy import Busy as Busy  # noqa: PLC0414 - likewise
from agent.wire_carry import Carry as Carry  # noqa: PLC0414 - both sides import this module only
from agent.wire_carry import Ticket as Ticket  # noqa: PLC0414 - likewise
from agent.wire_conditions import ConditionType as ConditionType  # noqa: PLC0414 - likewise
from agent.wire_frames import VERSION as VERSION  # noqa: PLC0414 - likewise
from agent.wire_frames import Bytes as Bytes  # noqa: PLC0414 - likewise
from agent.wire_frames import CamelCase as CamelCase  # noqa: PLC0414 - likewise
from agent.wire_frames import Celsius as Celsius  # noqa: PLC0414 - likewise
from agent.wire_frames import Count as Count  # noqa: PLC0414 - likewise
from agent.wire_frames import DeviceBytes as DeviceBytes  # noqa: PLC0414 - likewise
from agent.wire_frames import Digest as Digest  # noqa: PLC0414 - likewise
from agent.wire_frames import Frame as Frame  # noqa: PLC0414 - likewise
from agent.wire_frames import GpuUuid as GpuUuid  # noqa: PLC0414 - likewise
from agent.wire_frames import MeasuredPercent as MeasuredPercent  # noqa: PLC0414 - likewise
from agent.wire_frames import Percent as Percent  # noqa: PLC0414 - likewise
from agent.wire_frames import Record as Record  # noqa: PLC0414 - likewise
from agent.wire_frames import Seconds as Seconds  # noqa: PLC0414 - likewise
from agent.wire_frames import Sentence as Sentence  # noqa: PLC0414 - likewise
from agent.wire_frames import Uid as Uid  # noqa: PLC0414 - likewise
from agent.wire_frames import Word as Word  # noqa: PLC0414 - likewise
from agent.wire_groups import MAX_GROUPS as MAX_GROUPS  # noqa: PLC0414 - likewise
from agent.wire_groups import Group as Group  # noqa: PLC0414 - likewise
from agent.wire_groups import GroupMember as GroupMember  # noqa: PLC0414 - likewise
from agent.wire_hello import MAX_CHECKS as MAX_CHECKS  # noqa: PLC0414 - likewise
from agent.wire_hello import MAX_GPUS as MAX_GPUS  # noqa: PLC0414 - likewise
from agent.wire_hello import Check as Check  # noqa: PLC0414 - likewise
from agent.wire_hello import Gpu as Gpu  # noqa: PLC0414 - likewise
from agent.wire_hello import Hello as Hello  # noqa: PLC0414 - likewise
from agent.wire_jobs import IMAGE as IMAGE  # noqa: PLC0414 - likewise
from agent.wire_jobs import MAX_CHUNK_BYTES as MAX_CHUNK_BYTES  # noqa: PLC0414 - likewise
from agent.wire_jobs import MAX_IMAGE as MAX_IMAGE  # noqa: PLC0414 - likewise
from agent.wire_jobs import MAX_RUNS as MAX_RUNS  # noqa: PLC0414 - likewise
from agent.wire_jobs import Files as Files  # noqa: PLC0414 - likewise
from agent.wire_jobs import Git as Git  # noqa: PLC0414 - likewise
from agent.wire_jobs import JobRun as JobRun  # noqa: PLC0414 - likewise
from agent.wire_jobs import JobState as JobState  # noqa: PLC0414 - likewise
from agent.wire_jobs import Output as Output  # noqa: PLC0414 - likewise
from agent.wire_jobs import Stored as Stored  # noqa: PLC0414 - likewise
from agent.wire_jobs import Tunnel as Tunnel  # noqa: PLC0414 - likewise
from agent.wire_jobs import fit_runs as fit_runs  # noqa: PLC0414 - likewise
from agent.wire_mig import MAX_SLICES as MAX_SLICES  # noqa: PLC0414 - likewise
from agent.wire_mig import Mig as Mig  # noqa: PLC0414 - likewise
from agent.wire_mig import MigPlace as MigPlace  # noqa: PLC0414 - likewise
from agent.wire_mig import MigProfile as MigProfile  # noqa: PLC0414 - likewise
from agent.wire_mig import SharedInstance as SharedInstance  # noqa: PLC0414 - likewise
from agent.wire_pods import LabelName as LabelName  # noqa: PLC0414 - likewise
from agent.wire_pods import ObjectName as ObjectName  # noqa: PLC0414 - likewise
from agent.wire_pods import Pod as Pod  # noqa: PLC0414 - likewise
from agent.wire_pods import ResourceClaim as ResourceClaim  # noqa: PLC0414 - likewise
from agent.wire_remote import RemoteEndpoint as RemoteEndpoint  # noqa: PLC0414 - likewise
from agent.wire_remote import RemoteTicket as RemoteTicket  # noqa: PLC0414 - likewise
from agent.wire_remote import RemoteUse as RemoteUse  # noqa: PLC0414 - likewise
from agent.wire_words import ALL_TENANTS as ALL_TENANTS  # noqa: PLC0414 - likewise
from agent.wire_words import AssignmentState as AssignmentState  # noqa: PLC0414 - likewise
from agent.wire_words import AuditPolicy as AuditPolicy  # noqa: PLC0414 - likewise
from agent.wire_words import BackEnd as BackEnd  # noqa: PLC0414 - likewise
from agent.wire_words import DriftKind as DriftKind  # noqa: PLC0414 - likewise
from agent.wire_words import Policy as Policy  # noqa: PLC0414 - likewise

# Of an agent's frame: a node of 16 GPUs with 32 assignments each stays under 200 KiB.
MAX_FRAME_BYTES = 1 << 20
MAX_ASSIGNMENTS, MAX_CONDITIONS, MAX_DRIFTS, MAX_PROCESSES = 4096, 1024, 64, 512
# Containers request a claim's device by it: `--device gpucloud.io/vgpu=<claim uid>`.
CDI_KIND: Final = "gpucloud.io/vgpu"
DRA_DRIVER: Final = "gpucloud.io"  # the driver's name in ResourceSlices, DeviceClasses and ResourceClaims

# Close codes of /ws/agent/. 4000-4999 is the range that RFC 6455 leaves to applications.
CLOSE_MALFORMED, CLOSE_UNAUTHORISED, CLOSE_SUPERSEDED, CLOSE_TOO_LARGE, CLOSE_BUSY = 4400, 4401, 4409, 4413, 4429


class Observation(Record, frozen=True, kw_only=True):
    """One assignment as the agent sees it."""

    uid: Uid
    # The generation whose limits are on the page.
    generation: Count
    state: AssignmentState
    reason: Sentence | None = None  # in words, if the state is `over_limit` or `failed`
    # Device memory in use: shrunk limits are given back once this is at or below the limit. 0 while it is suspended.
    memory_bytes: Bytes = 0
    # Host memory that holds what the claim had on this GPU; only while it is suspended.
    saved_bytes: Bytes | UnsetType = UNSET
    # It could not suspend it at this generation and left it in force, or not resume it and left it suspended: why, and
    # what to do. The server answers by a new generation that wants what is.
    suspend_refused: Sentence | UnsetType = UNSET
    # Of a new node that waits for the claim's programs.
    ticket: Ticket | UnsetType = UNSET


class Drift(Record, frozen=True, kw_only=True):
    """One difference between a claim's state on the machine and what the agent wrote."""

    kind: DriftKind
    claim_uid: Uid
    detail: Sentence  # in words, with what to do if the agent cannot repair it
    mendable: bool  # True if the agent could repair it, and waits for the order
    since: Seconds


class Observed(Frame, frozen=True, kw_only=True):
    """Agent → server: everything in force on the node, after frame `frame` of `desired`."""

    frame: Count
    assignments: Annotated[list[Observation], Meta(max_length=MAX_ASSIGNMENTS)]
    # Left out if there is none: an older server does not know the field.
    drifts: Annotated[list[Drift], Meta(max_length=MAX_DRIFTS)] | UnsetType = UNSET
    jobs: Annotated[list[JobState], Meta(max_length=MAX_RUNS)] | UnsetType = UNSET  # left out if there is none


class GpuUsage(Record, frozen=True, kw_only=True, gc=False):
    """The usage of one GPU since the last sample, by NVML."""

    uuid: GpuUuid
    core_percent: MeasuredPercent
    memory_bytes: Bytes
    power_watts: Annotated[float, Meta(ge=0, le=1e6)] | None = None
    temperature_celsius: Celsius | None = None
    sm_clock_mhz: Count | None = None
    memory_clock_mhz: Count | None = None


# A server holds tens of thousands of these a second: without references, they need no garbage collection.
class AssignmentUsage(Record, frozen=True, kw_only=True, gc=False):
    """The usage of one assignment since the last sample, by libvcuda's account (billing does not use it)."""

    uid: Uid
    core_percent: MeasuredPercent
    # The share that it may use while nobody else wants the GPU, by the sharing policy and its limit.
    core_limit_percent: Percent
    # Share of the time in which a launch waited for its turn.
    throttled_percent: MeasuredPercent
    memory_bytes: Bytes
    memory_limit_bytes: Bytes
    processes: Count
    # GPU time since the last sample, and kernels and graphs launched, by the same account.
    gpu_time_ms: Annotated[float, Meta(ge=0, le=1e9)] | None = None
    launches_per_second: Annotated[float, Meta(ge=0, le=1e9)] | None = None
    # Left out unless it borrows, and for a server that does not take it (`Welcome.borrowed`).
    borrowed: BorrowedMemory | UnsetType = UNSET
    # Of the first assignment of a claim that has clients on other machines; left out likewise.
    remote: RemoteUse | UnsetType = UNSET


class Usage(Frame, frozen=True, kw_only=True):
    """Agent → server, once a second: kept and sent again until `ack` names its sequence number."""

    seq: Annotated[int, Meta(ge=1, le=2**63 - 1)]
    at: Seconds
    gpus: Annotated[list[GpuUsage], Meta(max_length=MAX_GPUS)]
    assignments: Annotated[list[AssignmentUsage], Meta(max_length=MAX_ASSIGNMENTS)]


class GpuProcess(Record, frozen=True, kw_only=True):
    """A process that NVML lists on a GPU; its memory is None if NVML does not say, its claim if it has none."""

    pid: Count
    command: Word
    gpu_uuid: GpuUuid
    memory_bytes: Bytes | None
    claim_uid: Uid | None


class GpuHealth(Record, frozen=True, kw_only=True, omit_defaults=True):
    """The health of one GPU; ECC errors since the driver was loaded. None: its card or driver cannot say."""

    uuid: GpuUuid
    temperature_celsius: Celsius | None = None
    ecc_corrected: Count | None = None
    ecc_uncorrected: Count | None = None
    last_xid: Count | None = None
    last_xid_at: Seconds | None = None
    last_xid_meaning: Word = ""
    last_xid_cure: Word = ""  # `program`, `time` or `reset`
    # Means since the last report: SMs with work, SMs at tensor operations, used memory bandwidth.
    sm_active_percent: MeasuredPercent | None = None
    tensor_active_percent: MeasuredPercent | None = None
    dram_active_percent: MeasuredPercent | None = None


class Health(Frame, frozen=True, kw_only=True):
    """Agent → server, twice a minute, if its welcome says `health`: slow readings of all GPUs, and their processes."""

    at: Seconds
    gpus: Annotated[list[GpuHealth], Meta(max_length=MAX_GPUS)]
    processes: Annotated[list[GpuProcess], Meta(max_length=MAX_PROCESSES)]  # those with the most memory


# Codes of events about a best-effort claim, which the claim's owner is told, too.
LONG_KERNEL, LENT_MEMORY_KEPT = "kernel-too-long", "lent-memory-kept"


class Event(Frame, frozen=True, kw_only=True):
    """Agent → server: something happened that an operator should know."""

    at: Seconds
    code: Annotated[str, Meta(pattern=r"^[a-z][a-z0-9-]{0,63}$")]
    detail: Sentence
    assignment_uid: Uid | None = None
    process: GpuProcess | None = None
    # The claims whose programs lost their GPU together, as they shared an MPS server.
    fallen: Annotated[list[Uid], Meta(max_length=MAX_PROCESSES)] | UnsetType = UNSET


class Condition(Record, frozen=True, kw_only=True, omit_defaults=True):
    """One condition of the node or of one of its GPUs, in the form of Kubernetes' conditions."""

    # One of `ConditionType`, or a newer agent's.
    type: CamelCase
    status: Literal["True", "False", "Unknown"]
    # The reason in one word; `Xid79` for an XID error.
    reason: CamelCase
    message: Sentence = ""
    # When its status last changed, by the agent's clock.
    since: Seconds
    # None: of the node.
    gpu_uuid: GpuUuid | None = None
    # True if the GPU (the node) takes no new claims meanwhile.
    unschedulable: bool = False


class Conditions(Frame, frozen=True, kw_only=True):
    """Agent → server, on each connection and when one changes: all conditions of the node and its GPUs."""

    conditions: Annotated[list[Condition], Meta(max_length=MAX_CONDITIONS)]


class Welcome(Frame, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """Server → agent: the hello was accepted. The `desired` that follows counts whatever its frame number."""

    node_uid: Uid
    node_name: Word
    server_time: Seconds
    health: bool = False  # It takes `Health` frames; an older server would end the connection at the first.
    borrowed: bool = False  # It takes `AssignmentUsage.borrowed` and `remote`; likewise.


class Sharing(Record, forbid_unknown_fields=False, frozen=True, kw_only=True, omit_defaults=True):
    """The sharing policy of a GPU, and its parameters for the claim."""

    policy: Policy = "burst"
    # Of the claim; for `weighted`.
    weight: Annotated[int, Meta(ge=1, le=1000)] = 1
    best_effort: bool = False  # of the claim; for `preempt`
    # Percent of the GPU that all its claims together may use.
    ceiling: Annotated[int, Meta(ge=1, le=100)] = 100
    # The number of equal parts into which `average` divides the GPU.
    parts: Annotated[int, Meta(ge=1, le=16)] = 1


class Assignment(Record, forbid_unknown_fields=False, frozen=True, kw_only=True, omit_defaults=True):
    """One claim's share of one GPU, as wanted. Defaults are left out, so that an older agent can read it."""

    uid: Uid
    claim_uid: Uid
    tenant: Word
    gpu_uuid: GpuUuid
    generation: Annotated[int, Meta(ge=1)]
    core_request: Percent
    core_limit: Percent
    memory_bytes: Bytes
    # SHA-256 of the claim's secret: a caller with the secret may start processes under the claim on agent.sock.
    secret_digest: Digest
    # None: `Sharing()`.
    sharing: Sharing | None = None
    backend: BackEnd = "turns"  # the same for all assignments of a GPU
    borrowing: Borrowing | None = None  # None: all of `memory_bytes` is promised, as an older agent always does
    trust_group: Word = ""  # with `backend` mps: the claims that share a server; empty: those of its tenant
    claim_name: Word = ""  # that its owner gave it
    # None: no cluster's container. Sent to agents that are a kubelet's device plugin; an older one could not read it.
    pod: Pod | None = None
    # The pod's uid, which tells it from another pod of its name. Empty: the claim existed before the pod.
    pod_uid: Word = ""
    resource_claim: ResourceClaim | None = None  # None: no ResourceClaim's
    # True: move the GPU memory of the claim's programs to host memory and stop them. The same for all assignments of a
    # claim. An older agent ignores it; `suspend` of its hello tells. Resumed, it may have another `gpu_uuid` (`move`).
    suspended: bool = False
    # With `suspended`, if not 0: its programs end after this time to save their state (`agent.suspend.ending`).
    end_seconds: Annotated[int, Meta(ge=0, le=3600)] = 0
    carry: Carry | None = None  # with `suspended` and after it, while its programs are carried to another node
    # On a GPU in MIG mode: its instance. None: a share of the whole GPU.
    mig: MigPlace | None = None
    shared: SharedInstance | None = None  # None: it has its instance alone
    prepared: bool = False  # its instance is one that an operator made: nothing is made or removed
    remote_refused: Word = ""  # why clients of other machines may not use it (any more); empty: nothing is against it
    # False: close the page, end its processes, report `released`.
    present: bool = True


class NodePolicy(Record, forbid_unknown_fields=False, frozen=True, kw_only=True, omit_defaults=True):
    """The policies of the node's pool and its operators for the agent, beside assignments."""

    audit: AuditPolicy = "warn"
    backend: BackEnd = "turns"  # of claims that are still to come
    # Milliseconds that a kernel of a best-effort claim should take at most; 0: any time.
    longest_kernel_ms: Count = 0
    # By GPU: an operator declared errors cured that came up to this moment of the agent's clock.
    cleared: dict[GpuUuid, Seconds] = {}


class Desired(Frame, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """Server → agent: the node's whole wanted state. The agent releases all that is on the node and not in here."""

    frame: Count
    # Left out if it is `NodePolicy()`, so that an older agent can read the frame.
    policy: NodePolicy | msgspec.UnsetType = msgspec.UNSET
    assignments: Annotated[list[Assignment], Meta(max_length=MAX_ASSIGNMENTS)]
    mend: bool | UnsetType = UNSET  # False: changes made on the machine are only reported, not repaired
    groups: Annotated[list[Group], Meta(max_length=MAX_GROUPS)] | UnsetType = UNSET  # left out if there is none
    jobs: Annotated[list[JobRun], Meta(max_length=MAX_RUNS)] | UnsetType = UNSET  # likewise; others are ended, removed


class Ack(Frame, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """Server → agent: every usage frame up to and including `seq` is stored."""

    seq: Annotated[int, Meta(ge=1)]


FromAgent = Hello | Observed | Usage | Event | Conditions | Health | Output
FromServer = Welcome | Desired | Ack | Stored | Tunnel | RemoteTicket

_encoder = msgspec.json.Encoder()
_from_agent: msgspec.json.Decoder[FromAgent] = msgspec.json.Decoder(FromAgent)
_from_server: msgspec.json.Decoder[FromServer] = msgspec.json.Decoder(FromServer)


class MalformedFrame(ValueError):
    """Bytes that are not a frame of this protocol; the message says which field and why."""


def encode(frame: Frame) -> str:
    """Return the frame as JSON text, ready for a text message."""
    return _encoder.encode(frame).decode()


def decode_from_agent(text: str | bytes) -> FromAgent:
    """Decode an agent's frame. Raises MalformedFrame."""
    try:
        return _from_agent.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise MalformedFrame(str(error)) from error


def decode_from_server(text: str | bytes) -> FromServer:
    """Decode a server's frame. Raises MalformedFrame."""
    try:
        return _from_server.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise MalformedFrame(str(error)) from error
