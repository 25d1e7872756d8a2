"""The first frame of an agent: itself, its machine and its GPUs."""

from typing import Annotated, Literal

from msgspec import UNSET, Meta, UnsetType

from agent.wire_frames import Bytes, Count, DeviceBytes, Frame, GpuUuid, Record, Sentence, Word
from agent.wire_mig import Mig
from agent.wire_pods import ObjectName
from agent.wire_remote import RemoteEndpoint
from agent.wire_words import BackEnd

MAX_GPUS, MAX_CHECKS = 64, 32


class Gpu(Record, frozen=True, kw_only=True):
    """One physical device, as NVML shows it."""

    uuid: GpuUuid
    index: Count
    model: Word
    memory_bytes: DeviceBytes
    # The nearest common ancestor with each other GPU, by its uuid: "nvlink", "pcie", "numa", "system".
    links: dict[GpuUuid, Word] = {}
    mig: Mig | UnsetType = UNSET  # left out unless it is in MIG mode


class Check(Record, frozen=True, kw_only=True):
    """The agent's self-check of one prerequisite."""

    name: Annotated[str, Meta(pattern=r"^[a-z][a-z0-9-]{0,63}$")]
    state: Literal["ok", "warning", "failed"]
    detail: Annotated[str, Meta(max_length=500)]
    # The fix, unless it is `ok`.
    cure: Annotated[str, Meta(max_length=500)] | None = None


class Hello(Frame, frozen=True, kw_only=True):
    """Agent → server, first frame of a connection: the agent, its machine and its GPUs."""

    agent_version: Word
    driver_version: Word
    hostname: Word
    # The directory in which `python -m agent exec` finds this agent, and the library that it preloads.
    run_dir: Sentence
    library: Sentence
    simulated: bool = False  # True if the GPUs are the simulated driver's
    arbiter: bool = False  # True if one is installed, which gives the claims of a GPU their turns
    gpus: Annotated[list[Gpu], Meta(max_length=MAX_GPUS)]
    checks: Annotated[list[Check], Meta(max_length=MAX_CHECKS)] = []
    # Both left out without a kubelet: the node's name in its cluster; True if the agent is its driver for DRA.
    kubernetes_node: ObjectName | UnsetType = UNSET
    dra: bool | UnsetType = UNSET
    # Both left out unless the driver can suspend: True, and the host memory of all suspended claims of this node.
    suspend: bool | UnsetType = UNSET
    host_memory_bytes: Bytes | UnsetType = UNSET
    restart: bool | UnsetType = UNSET  # True: it knows `end_seconds`.
    # True: a suspended claim may resume on other GPUs of this node, of the same model. Left out if it may not.
    move: bool | UnsetType = UNSET
    carry: bool | UnsetType = UNSET  # True: it can send and take running programs. Left out if it cannot.
    # The back ends that it can serve beside turns. Left out by an older agent, which gives turns only.
    backends: Annotated[list[BackEnd], Meta(max_length=8)] | UnsetType = UNSET
    jobs: bool | UnsetType = UNSET  # True: it can start the programs of jobs. Left out if it cannot.
    images: bool | UnsetType = UNSET  # True: in containers, too. Likewise.
    tunnels: bool | UnsetType = UNSET  # True: it knows `Tunnel`. Left out by an older agent.
    shared_instances: bool | UnsetType = UNSET  # True: it knows `Assignment.shared`. Likewise.
    lends_memory: bool | UnsetType = UNSET  # True: it knows `Assignment.borrowing`, and its arbiter too. Likewise.
    remote: RemoteEndpoint | UnsetType = UNSET  # Left out if no program of another machine may use its GPUs.
