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
        _("Who asks, and for what"),
        {
            "tenant": Word(
                _("Tenant"),
                _("A team, a course or a customer: who is charged. It has quotas, members and tokens."),
            ),
            "claim": Word(
                _("Claim"),
                _("What is asked for: a number of GPUs, and on each a share of compute and an amount of memory."),
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
            "request": Word(
                _("Request"),
                _("The core that is guaranteed, whatever the neighbours do. This is what the quota is charged."),
            ),
            "limit": Word(
                _("Limit"),
                _("The most core that is given while others are idle. It can be changed while the program runs."),
            ),
            "weight": Word(
                _("Weight"),
                _("How what is scarce is divided: of two that want all, the one of weight 2 gets twice as much."),
            ),
            "best-effort": Word(
                _("Best effort"),
                _("Nothing is guaranteed: it gets what others leave, and makes way when they want their own."),
            ),
        },
    ),
    Chapter(
        _("What is used"),
        {
            "leased": Word(
                _("Leased"),
                _("Promised to claims, whether they use it or not. Nothing is ever promised twice."),
            ),
            "used": Word(_("Used"), _("What programs did use, as measured in the last seconds.")),
            "throttled": Word(
                _("Throttled"),
                _("The part of the time in which a program wanted to compute and its limit held it back."),
            ),
            "idle": Word(
                _("Idle"),
                _("Held, but nothing is computed. The pool’s rule says what follows: a report, lending, or release."),
            ),
            "gpu-hours": Word(
                _("GPU-hours"),
                _("What was held, by time: a quarter of a GPU held for four hours is one GPU-hour."),
            ),
        },
    ),
    Chapter(
        _("Quotas"),
        {
            "quota": Word(
                _("Quota"),
                _("What a tenant may hold of one resource, in one pool or in all. No quota means none of it."),
            ),
            "cohort": Word(_("Cohort"), _("Tenants that lend each other what is unused of their quotas.")),
            "borrowed": Word(
                _("Borrowed"),
                _("Held above the tenant’s own quota, from what others of its cohort leave unused."),
            ),
            "lent": Word(_("Lent"), _("Unused, but others use it for now. It comes back when its owner wants it.")),
            "free": Word(
                _("Still free"), _("What could be asked for now: the rest of the quota, and what may be borrowed.")
            ),
        },
    ),
    Chapter(
        _("Waiting and placing"),
        {
            "round": Word(
                _("Round"),
                _("One pass of the scheduler over what waits. It is kept, with its reasons, and can be replayed."),
            ),
            "place": Word(_("Place"), _("Who is asked next in the pool’s queue. It counts claims of every tenant.")),
            "priority": Word(_("Priority"), _("Higher goes first in the pool’s queue; 0 unless given.")),
            "estimate": Word(
                _("Starts"),
                _("An estimate: when what it needs should be free, by the time limits of what runs now."),
            ),
            "proposal": Word(
                _("Proposal"), _("A change that the rebalancer found useful and that waits for somebody’s yes.")
            ),
        },
    ),
    Chapter(
        _("The machines"),
        {
            "node": Word(_("Node"), _("A machine with GPUs.")),
            "agent": Word(
                _("Agent"),
                _("Our program on a node. It makes limits real, measures use, and reports once a second."),
            ),
            "heartbeat": Word(
                _("Heartbeat"),
                _("The agent’s last sign of life. Without one the programs go on with the limits they have."),
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
                _("Counts the changes of a claim. It is in force when the node says the same number."),
            ),
            "sharing-policy": Word(
                _("Sharing policy"),
                _("How claims of one GPU divide its compute: by fixed limits, by weight, or the first before others."),
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
}
