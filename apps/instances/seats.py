"""Claims in the MIG instances of others: their places, and their end with the instance.

A claim opens its instance by keeping a part for itself (`own_core`). The rest is the room of its assignment, which
claims of its tenant take and return: each taking is one UPDATE whose WHERE is the check, and a constraint stands behind
it. What is taken is returned when the agent has confirmed that it is no longer used, as with the room of GPUs. The own
part is taken of the same room, so that it changes live by the same rules.

No round of the scheduler places these claims: they have one place only. `drive` is level-triggered: it tries all that
wait, the highest priority first, and ends all whose instance ends. A claim that does not fit holds up none after it.

Order of locks: the claim, then the assignment that has the instance.
"""

from collections.abc import Sequence
from typing import Any

from django.db import transaction
from django.db.models import F, Q, QuerySet, Sum
from django.utils import timezone

from apps.quotas.principals import SYSTEM
from apps.scheduling.models import Assignment, AssignmentState, Claim, ClaimState
from apps.scheduling.models.claim import PLACED, WAITING
from apps.scheduling.services.charging import states
from apps.scheduling.services.claims.lifecycle import end_assignments, limits, locked, raise_frames, release_claim
from apps.scheduling.services.failures import each
from gpucloud.errors import Conflict

NOT_READY, FULL = "instance-not-ready", "instance-full"
ENDED = "the claim whose instance it used has ended"
# The other claim is on its way back to the queue, or in it.
GOES_BACK = Q(state=ClaimState.RELEASING, preempt_at__isnull=False) | Q(state__in=WAITING)


class NoRoomInInstance(Conflict, code="no-room", title="The instance has no room for this"):
    """The other claims in the instance leave less than is asked for."""


def drive() -> int:
    """Place the claims that wait, end those whose instance has ended; return the number of changes. May run twice."""
    openers = Claim.objects.filter(instance_of__isnull=True, own_core__isnull=False)
    return _follow(openers) + each(_live().filter(state__in=WAITING).order_by("-priority", "pk"), seat)


def follow_on_commit(opener: Claim) -> None:
    """End what is in the claim's instance with it, as soon as this transaction is committed; else `drive` does."""
    rows = Claim.objects.filter(pk=opener.pk)
    transaction.on_commit(lambda: _follow(rows), robust=True)


def _follow(openers: QuerySet[Claim]) -> int:
    """End or queue again the claims in instances of these that have ended; return their number."""
    gone = openers.exclude(GOES_BACK).filter(state__in=(ClaimState.RELEASING, ClaimState.RELEASED))
    done = each(_live().filter(instance_of__in=gone.values("uid")).order_by("pk"), _end)
    back = _live().filter(state__in=PLACED, instance_of__in=openers.filter(GOES_BACK).values("uid"))
    return done + each(back.order_by("pk"), _requeue)


def _live() -> QuerySet[Claim]:
    inside = Claim.objects.filter(instance_of__isnull=False).select_related("tenant")
    return inside.exclude(state__in=(ClaimState.RELEASING, ClaimState.RELEASED))


def _end(claim: Claim) -> bool:
    release_claim(principal=SYSTEM, claim=claim, why=ENDED)
    return True


@transaction.atomic
def _requeue(seen: Claim) -> bool:
    claim = locked(seen)
    if claim.state not in PLACED:
        return False
    detail = "The claim whose instance it used is queued again: it waits for the next instance of that claim"
    reasons = [{"code": NOT_READY, "gpus": 0, "detail": detail}]
    return end_assignments(claim, preempt_at=timezone.now(), reasons=reasons)


@transaction.atomic
def seat(seen: Claim) -> bool:
    """Place a waiting claim in its instance; return False and record why it waits if there is no room."""
    claim = locked(seen)
    if claim.state not in WAITING:
        return False
    item = _instances_of(claim).select_for_update(of=("self",), no_key=True).first()
    wanted = {"core": claim.core_request, "memory_mib": claim.memory_mib}
    if obstacle := _find_obstacle(item):
        _wait(claim, NOT_READY, obstacle)
    elif not _take(claim, **wanted):
        _wait(claim, FULL, _say_full(item, **wanted))
    else:
        assert item is not None
        _place(claim, item)
        return True
    return False


def _place(claim: Claim, item: Assignment) -> None:
    Assignment.objects.create(
        claim=claim,
        gpu_id=item.gpu_id,
        **limits(claim),
        held_core=0,
        held_memory_mib=0,
        taken_core=claim.core_request,
        taken_memory_mib=claim.memory_mib,
        generation=claim.generation,
    )
    states.move(claim, ClaimState.ASSIGNED, assigned_at=timezone.now(), reasons=[])
    raise_frames({item.gpu.node_id})


def resize(claim: Claim, assignments: Sequence[Assignment]) -> None:
    """Take what the claim's new limits or own part need beyond what it has taken. Raises NoRoomInInstance."""
    wanted_core, wanted_mib = claim.core_request, claim.memory_mib
    if claim.own_core is not None and claim.own_memory_mib is not None:
        wanted_core, wanted_mib = claim.own_core, claim.own_memory_mib
    for item in assignments:
        core = max(0, wanted_core - item.taken_core)
        memory_mib = max(0, wanted_mib - item.taken_memory_mib)
        if (core or memory_mib) and not _take(claim, core=core, memory_mib=memory_mib):
            raise NoRoomInInstance(_refuse(claim, core=core, memory_mib=memory_mib))
        item.taken_core += core
        item.taken_memory_mib += memory_mib


def give_back(claim: Claim, *, core: int, memory_mib: int) -> None:
    """Return to the instance what a claim in it no longer has; one that is gone needs nothing."""
    _instances_of(claim).update(room_core=F("room_core") + core, room_memory_mib=F("room_memory_mib") + memory_mib)


def _take(claim: Claim, *, core: int, memory_mib: int) -> bool:
    room = _instances_of(claim).filter(room_core__gte=core, room_memory_mib__gte=memory_mib)
    return bool(room.update(room_core=F("room_core") - core, room_memory_mib=F("room_memory_mib") - memory_mib))


def _instances_of(claim: Claim) -> QuerySet[Assignment]:
    """Return the assignment that has the claim's instance now, its own or the one it is in, if there is one."""
    rows = Assignment.objects.live().filter(claim__uid=claim.instance_of or claim.uid, mig_start__isnull=False)
    return rows.select_related("claim", "gpu__node")


def _find_obstacle(item: Assignment | None) -> str:
    """Return why nothing is placed in the instance now, in words; empty: it is open."""
    if item is None or item.state == AssignmentState.RELEASING or item.claim.preempt_at is not None:
        return "The claim whose instance it is to use has none at present"
    node = item.gpu.node
    if not node.shared_instances:
        return (
            f"The agent of node {node.name}, on which its instance is, is too old to run several claims in one: it is "
            "to be upgraded"
        )
    if item.gpu.state != "ready" or node.state != "ready":
        return f"GPU {item.gpu.index} of node {node.name}, on which its instance is, takes no claims at present"
    return ""


def _say_full(item: Assignment | None, *, core: int, memory_mib: int) -> str:
    if item is None:
        return "The instance is gone"
    return (
        f"The instance of claim {item.claim.name} has {item.room_core} % core and {item.room_memory_mib} MiB left; "
        f"{core} % and {memory_mib} MiB are needed"
    )


def _refuse(claim: Claim, *, core: int, memory_mib: int) -> str:
    """Return the refusal of more of the instance, in words."""
    words = _say_full(_instances_of(claim).first(), core=core, memory_mib=memory_mib)
    if claim.instance_of is not None:
        return f"{words}."
    inside = Assignment.objects.live().filter(claim__instance_of=claim.uid)
    taken = inside.aggregate(core=Sum("taken_core", default=0), memory_mib=Sum("taken_memory_mib", default=0))
    count = inside.count()
    return (
        f"{words} beyond its own part. {count} claim{'s' * (count != 1)} in it {'has' if count == 1 else 'have'} "
        f"{taken['core']} % and {taken['memory_mib']} MiB: release or shrink {'it' if count == 1 else 'some'}, or ask "
        "for less."
    )


def _wait(claim: Claim, code: str, detail: str) -> None:
    """Let the claim wait, and record why if that is news."""
    reasons: list[dict[str, Any]] = [{"code": code, "gpus": 0, "detail": detail}]
    if claim.reasons != reasons or claim.state != ClaimState.QUEUED:
        states.move(claim, ClaimState.QUEUED, reasons=reasons)
