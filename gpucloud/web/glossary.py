"""The glossary: definitions of the terms on pages, for popovers and `/help/`."""

from dataclasses import dataclass
from typing import Final

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _


@dataclass(frozen=True, slots=True)
class Word:
    """A term explained in two or three sentences, with its unit if it has one."""

    name: Promise
    meaning: Promise


@dataclass(frozen=True, slots=True)
class Chapter:
    """Related terms, by key."""

    title: Promise
    words: dict[str, Word]


CHAPTERS: Final = (
    Chapter(
        _("Claims and tenants"),
        {
            "tenant": Word(
                _("Tenant"),
                _("A team, a course or a customer with quotas, members and tokens. Claims are charged to it."),
            ),
            "claim": Word(
                _("Claim"),
                _("A request for a number of GPUs with a share of compute and an amount of memory on each."),
            ),
            "assignment": Word(
                _("Assignment"),
                _("A claim’s share of one GPU: the virtual GPU that its programs see. A claim has one for each GPU."),
            ),
            "pool": Word(_("Pool"), _("A named set of nodes that share GPUs by the same rules.")),
            "reservation": Word(
                _("Reservation"),
                _("A share of GPUs booked for a time. Claims made in it find its room free when the time comes."),
            ),
        },
    ),
    Chapter(
        _("A share of a GPU"),
        {
            "core": Word(
                _("Core"),
                _("Compute of one GPU, in percent of its time: 100 % is the whole GPU, 25 % a quarter of it."),
            ),
            "memory": Word(
                _("Memory"),
                _("Device memory on each GPU, in MiB. An allocation above it fails; nothing is moved to the host."),
            ),
            "isolation": Word(
                _("Isolation"),
                _(
                    "Shared: the claim has a share of a GPU, which libvcuda keeps. Hard: it has a MIG instance of its "
                    "own, a part of the GPU with compute and memory that the hardware keeps apart. A claim that has "
                    "opened its instance shares it with claims of its tenant."
                ),
            ),
            "request": Word(
                _("Request"),
                _("Guaranteed core, whatever other claims do. The quota is charged with this amount."),
            ),
            "limit": Word(
                _("Limit"),
                _("Highest share of core while other claims are idle. It can be changed while the program runs."),
            ),
            "weight": Word(
                _("Weight"),
                _("Share of scarce capacity: with weight 2 a tenant gets twice as much as with weight 1."),
            ),
            "best-effort": Word(
                _("Best effort"),
                _("No guarantee: uses idle core of other claims, and yields when they need it."),
            ),
        },
    ),
    Chapter(
        _("Usage"),
        {
            "leased": Word(
                _("Allocated"),
                _("Allocated to claims, used or not. No share is allocated twice."),
            ),
            "used": Word(_("Used"), _("Measured use of programs in the last seconds.")),
            "throttled": Word(
                _("Throttled"),
                _("Part of the time in which the limit delayed GPU work of the program."),
            ),
            "borrowed-memory": Word(
                _("Borrowed memory"),
                _(
                    "Memory of a GPU that a best-effort claim uses beyond what is promised to it. It moves to host "
                    "memory while others of the GPU use theirs; programs stand still for the moves, and go on slower."
                ),
            ),
            "idle": Word(
                _("Idle"),
                _("Allocated, but without GPU work. The idle policy of the pool decides: report, lend or release."),
            ),
            "gpu-hours": Word(
                _("GPU-hours"),
                _("Allocated GPU time: a quarter of a GPU for four hours is one GPU-hour."),
            ),
        },
    ),
    Chapter(
        _("Quotas"),
        {
            "quota": Word(
                _("Quota"),
                _("Limit of a tenant for one resource, in one pool or in all pools. Without a quota it gets none."),
            ),
            "cohort": Word(_("Cohort"), _("Tenants that lend each other what is unused of their quotas.")),
            "borrowed": Word(
                _("Borrowed"),
                _("Allocated above the tenant’s own quota, from unused quota of its cohort."),
            ),
            "lent": Word(
                _("Lent"), _("Idle core that other claims use for now. It is returned when its owner needs it.")
            ),
            "free": Word(_("Available"), _("Amount available now: the rest of the quota and what may be borrowed.")),
        },
    ),
    Chapter(
        _("Queueing and scheduling"),
        {
            "round": Word(
                _("Scheduling cycle"),
                _("One pass of the scheduler over pending claims. Its reasons are recorded, and it can be replayed."),
            ),
            "place": Word(_("Place"), _("Position in the scheduling order of the pool, counted over all tenants.")),
            "priority": Word(_("Priority"), _("Higher goes first in the pool’s queue; 0 unless given.")),
            "estimate": Word(
                _("Starts"),
                _("Estimated start, from the time limits of running claims."),
            ),
            "proposal": Word(_("Proposal"), _("A change that the rebalancer recommends and that needs approval.")),
        },
    ),
    Chapter(
        _("Nodes and GPUs"),
        {
            "node": Word(_("Node"), _("A machine with GPUs.")),
            "agent": Word(
                _("Agent"),
                _("The gpucloud program on a node. It enforces limits, measures use and reports once a second."),
            ),
            "heartbeat": Word(
                _("Heartbeat"),
                _("The last message of the agent. Without heartbeats, programs keep their present limits."),
            ),
            "cordoned": Word(_("Cordoned"), _("It takes no new claims; those on it stay.")),
            "ecc": Word(
                _("ECC errors"),
                _("Memory errors since the driver was loaded. Corrected ones do no harm; uncorrected ones lose data."),
            ),
            "xid": Word(_("XID error"), _("The NVIDIA driver’s report that something went wrong on a GPU.")),
            "gpm": Word(
                _("SM active"),
                _("Part of the GPU’s processors with work, mean of 30 seconds. Counters (GPM) need Hopper or newer."),
            ),
            "generation": Word(
                _("Generation"),
                _("Counter of the changes of a claim. A change is applied when the node reports the same number."),
            ),
            "sharing-policy": Word(
                _("Sharing policy"),
                _("How claims of one GPU divide its compute: by fixed limits, by weight, or the first before others."),
            ),
            "back-end": Word(
                _("Back end"),
                _("How several claims use one GPU: in turns, side by side under MPS, or by time slices of the driver."),
            ),
        },
    ),
)
WORDS: Final = {key: word for chapter in CHAPTERS for key, word in chapter.words.items()}
# Fields of forms whose label is one of the terms, or stands for one.
FIELDS: Final = {
    "tenant": "tenant",
    "pool": "pool",
    "core_request": "request",
    "core_limit": "limit",
    "memory_mib": "memory",
    "weight": "weight",
    "best_effort": "best-effort",
    "priority": "priority",
    "cohort": "cohort",
    "hard": "quota",
    "borrowing_limit": "borrowed",
    "lending_limit": "lent",
    "sharing_policy": "sharing-policy",
    "backend": "back-end",
    "mps_group": "back-end",
}
