"""The values of a replay: past claims, the pool, and the figures of one kind of sharing. Times are Unix seconds."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple, get_args

from apps.scheduling.core.fair_share import Past
from apps.scheduling.core.queue import QueueEntry
from apps.scheduling.core.values import GpuState, NodeState

# Under `mps-per-tenant` a GPU has claims of one tenant only, so that all of them have one MPS server.
Sharing = Literal["turns", "mps", "mps-per-tenant", "mig"]
# As turns, with the queue in the order of this fair share; the others have the pool's own.
Order = Literal["fair-share-current", "fair-share-decayed"]
Kind = Sharing | Order
SHARINGS: Final[tuple[Sharing, ...]] = get_args(Sharing)
ORDERS: Final[tuple[Order, ...]] = get_args(Order)
KINDS: Final[tuple[Kind, ...]] = (*SHARINGS, *ORDERS)


class Size(NamedTuple):
    """The share of each GPU of a claim."""

    core: int
    memory_mib: int


class Resize(NamedTuple):
    """A live resize, so many seconds after the claim got its GPUs."""

    after_seconds: float
    size: Size


@dataclass(frozen=True, slots=True)
class PastClaim:
    """A claim of the period.

    `entry` has its first size, and as `since` its number in the order of arrival. `arrives_at`: the time from which it
    could have been placed. `run_seconds`: the time for which it held GPUs, without the time for which it was suspended;
    None: it still runs, or never ran. `left_at`: when it was released without having run. `ran_before`: it held its
    GPUs when the period began, and does not count as waiting.
    """

    entry: QueueEntry
    arrives_at: float
    run_seconds: float | None
    left_at: float | None = None
    never_ran: bool = False
    ran_before: bool = False
    resizes: tuple[Resize, ...] = ()
    suspensions: int = 0
    is_of_pod: bool = False
    is_reserved: bool = False


@dataclass(frozen=True, slots=True)
class Site:
    """The pool: its GPUs, free and in turns, its nodes and its rules; and the period."""

    gpus: tuple[GpuState, ...]
    nodes: tuple[NodeState, ...]
    begin: float
    end: float
    policy: str = "gpucloud"
    patience_seconds: int | None = None
    weights: Mapping[str, int] = field(default_factory=dict)
    # Of the queue's order: whether past use counts, and what each tenant held on average when the period began.
    remembers: bool = False
    half_life_seconds: int = 604_800
    past: Mapping[str, Past] = field(default_factory=dict)


class Waits(NamedTuple):
    """The waits of one tenant's claims, in seconds; those that wait at the end count up to then."""

    claims: int
    mean_seconds: float
    p95_seconds: float


@dataclass(frozen=True, slots=True)
class Figures:
    """The answer for one kind. Percentages are of the capacity of all GPUs over the period.

    `claims` = accepted + waiting + left + the sum of `unfit`: claims that the kind cannot serve, by reason. `waiting`:
    not placed by the end; `left`: released before their turn. Waits are in seconds and count those who wait, too.
    `core_percent` is what claims were given; `rounding_*` the part of it that they did not ask for. `stranded_*`: free
    while claims waited. `mixed_core_percent`: given on GPUs that several tenants shared at the time. `restarts`: live
    resizes that need a new start of the program.
    """

    kind: Kind
    gpus: int
    claims: int
    accepted: int
    waiting: int
    left: int
    unfit: Mapping[str, int]
    wait_mean_seconds: float
    wait_p95_seconds: float
    core_percent: float
    memory_percent: float
    rounding_core_percent: float
    rounding_memory_percent: float
    stranded_core_percent: float
    stranded_memory_percent: float
    mixed_core_percent: float
    resizes: int
    resizes_refused: int
    restarts: int
    suspensions_refused: int
    # By tenant.
    waits: Mapping[str, Waits] = field(default_factory=dict)
