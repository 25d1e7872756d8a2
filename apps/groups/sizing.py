"""The size of elastic groups: what is missing is made, what has no room is withdrawn, and groups grow into free room.

Level-triggered: each run reads every group and does what is due, each claim in a transaction of its own. So a run that
was killed needs no repair. Members leave for others by preemption (`apps.scheduling.services.reclaiming`), not here.
"""

from collections.abc import Sequence
from datetime import timedelta

from django.db import transaction
from django.db.models import Exists, OuterRef, Q
from django.utils import timezone

from apps.groups.members import publish
from apps.quotas.principals import SYSTEM
from apps.scheduling.core.fleet import Fleet
from apps.scheduling.core.values import Refused
from apps.scheduling.models import Claim, ClaimState, ElasticGroup
from apps.scheduling.models.claim import IN_QUEUE, PLACED
from apps.scheduling.services.charging import states
from apps.scheduling.services.claims.lifecycle import add_member, draft_member, locked, release_claim, request_of
from apps.scheduling.services.cycles.queue import NOT_THE_FLEET
from apps.scheduling.services.failures import each
from apps.scheduling.services.fleet.devices import read_fleet, read_nodes
from apps.scheduling.services.fleet.reserved import read_reserved
from gpucloud.errors import Conflict
from gpucloud.locks import exclusive

# A claim that fits is placed by a round within a second.
JOINS_WITHIN = timedelta(seconds=10)
# Reasons for which a claim waits whatever GPUs are free.
NOT_FOR_GPUS = (*NOT_THE_FLEET, "not-before", "group-incomplete")


def drive() -> int:
    """Run every elastic group; return the number of groups changed. A second run at the same time does nothing."""
    with exclusive("groups") as free:
        if not free:
            return 0
        # The smallest first: free room goes to them.
        return each(sorted(_living(), key=lambda group: len(group.members)), run_group)


def _living() -> list[ElasticGroup]:
    members = Claim.objects.live().filter(group_uid=OuterRef("first__uid"))
    rows = ElasticGroup.objects.filter(Q(Exists(members)) | ~Q(members=[]))
    return list(rows.select_related("first__tenant", "first__pool").order_by("pk"))


def run_group(group: ElasticGroup) -> bool:
    """Do what is due for one group; return True if anything changed.

    1. If its first claim has ended, release the others.
    2. Else say who is placed with whom; make what is missing, or withdraw what finds no room, or grow.
    3. Tell the programs who is in.
    """
    members = _read(group)
    if group.first not in members:
        changed = each(members, _end)
    else:
        changed = _settle(group, members) or _fill(group, members) or _withdraw(group, members) or _grow(group, members)
    return publish(group) or bool(changed)


def _read(group: ElasticGroup) -> list[Claim]:
    """Return the members that stay: not those that are released for good."""
    gone = Q(state=ClaimState.RELEASED) | Q(state=ClaimState.RELEASING, preempt_at=None)
    rows = Claim.objects.filter(group_uid=group.first.uid).exclude(gone)
    return list(rows.select_related("tenant", "pool").order_by("pk"))


def _end(claim: Claim) -> bool:
    release_claim(principal=SYSTEM, claim=claim, why="its group ended with its first claim")
    return True


def _settle(group: ElasticGroup, members: Sequence[Claim]) -> int:
    """Let the members that wait be placed together if the group does not run, else each alone."""
    runs = any(claim.state in PLACED for claim in members)
    changed = 0
    for rank, claim in enumerate(members):
        size = 1 if rank >= group.least or (runs and claim.waiting) else group.least
        if claim.group_size != size:
            changed += _change_size(claim, size)
    return changed


@transaction.atomic
def _change_size(seen: Claim, size: int) -> bool:
    claim = locked(seen)
    states.move(claim, claim.state, group_size=size)
    return True


def _fill(group: ElasticGroup, members: Sequence[Claim]) -> int:
    """Make the members that the group lacks, as far as its quota goes."""
    runs = any(claim.state in PLACED for claim in members)
    return _make(group, group.least - len(members), size=1 if runs else group.least)


def _make(group: ElasticGroup, number: int, *, size: int) -> int:
    for made in range(number):
        try:
            with transaction.atomic():
                first = locked(group.first)
                if first.state in (ClaimState.RELEASING, ClaimState.RELEASED):
                    return made
                add_member(first, principal=SYSTEM, group_size=size)
        except Conflict:
            return made
    return max(0, number)


def _withdraw(group: ElasticGroup, members: Sequence[Claim]) -> int:
    """Release the members above the least number that wait: those of a group that does not run, and those too late."""
    runs = any(claim.state in PLACED for claim in members)
    late = timezone.now() - JOINS_WITHIN
    surplus = [claim for claim in members[group.least :] if claim.waiting]
    return each([claim for claim in surplus if not runs or (claim.waiting_since or late) <= late], _give_up)


def _give_up(claim: Claim) -> bool:
    release_claim(principal=SYSTEM, claim=claim, why="there is no room for one more member of its group")
    return True


def _grow(group: ElasticGroup, members: Sequence[Claim]) -> int:
    """Add as many members as there is room for, if the group runs undisturbed and no other claim waits for GPUs."""
    settled = all(claim.state == ClaimState.ACTIVE and claim.preempt_at is None for claim in members)
    most = group.first.group_most or 0
    if not settled or len(members) >= most or _others_wait(group):
        return 0
    return _make(group, _find_room(group, most - len(members)), size=1)


def _others_wait(group: ElasticGroup) -> bool:
    waiting = Claim.objects.filter(IN_QUEUE, pool=group.first.pool, best_effort=False)
    waiting = waiting.filter(Q(start_at=None) | Q(start_at__lte=timezone.now()))
    for code in NOT_FOR_GPUS:
        waiting = waiting.exclude(reasons__contains=[{"code": code}])
    return waiting.exists()


def _find_room(group: ElasticGroup, most: int) -> int:
    """Return the number of further members, `most` at most, that fit on what is free and not withheld."""
    pool, claim = group.first.pool, draft_member(group.first, group_size=1)
    fleet = Fleet(read_fleet(pool), read_nodes(pool), policy=pool.placement_policy)
    held, request = read_reserved(pool, now=timezone.now()).withheld_from(claim, fleet.gpus), request_of(claim)
    for number in range(most):
        answer = fleet.place(request, held=held)
        if isinstance(answer, Refused):
            return number
        fleet.take(answer.gpus, request, node=answer.node)
    return most
