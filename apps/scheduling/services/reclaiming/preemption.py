"""Preemption: claims chosen by `reclaim` get notice, and after a grace go back to the queue, for a nominee.

Where the pool says so, a victim that can be suspended is, and waits at once to resume on its GPUs: nobody loses work.

A spare member of an elastic group (`claims.elastic`) is released instead: the group shrinks before anything else goes.

Level-triggered. Each run decides anew on the present state; claims with a notice are chosen first. So a run that never
ended, and a victim or a nominee that is gone, need no repair: the next run gives notice to new victims, spares those
that need not go, and ends those whose time has come, each in a transaction that checks both claims again under their
locks. A pod's claim gets notice like any other, and ends with its pod, which its cluster ends (`due_with_their_pods`).

Until the nominee is placed, its GPUs are withheld from all others (`reserved`), and nobody borrows more in the shares
that it is still to be charged to (`CohortShare.reclaimed_until`).
"""

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta

from django.db import transaction
from django.db.models import Q, QuerySet
from django.utils import timezone

from apps.nodes.models import Node
from apps.quotas.models import CohortShare, EventKind, Pool
from apps.quotas.models.pool import PreemptBy
from apps.scheduling import events
from apps.scheduling.models import Claim, ClaimState
from apps.scheduling.models.claim import PLACED, WAITING
from apps.scheduling.models.orders import SuspendedBy
from apps.scheduling.services.charging import states
from apps.scheduling.services.claims.elastic import is_spare
from apps.scheduling.services.claims.lifecycle import end_assignments
from apps.scheduling.services.claims.suspending import try_suspend
from apps.scheduling.services.failures import each
from apps.scheduling.services.reclaiming.draining import leaving
from apps.scheduling.services.reclaiming.reclaim import Plan, asking, find_ends, plans
from gpucloud.locks import exclusive

# Renewed by every run; it ends by itself if there are no more runs.
BORROWING_STOPS = timedelta(seconds=30)
CHOSEN = "A tenant of its cohort needs back what it lent"
OUTRANKED = "A claim of its tenant with a higher priority needs the room"
SPARED = "Its room is no longer needed, or was found elsewhere."


def drive() -> int:
    """Run preemption in every pool; return the number of claims changed. A second run at the same time does nothing."""
    with exclusive("preemption") as free:
        return _run_pools() if free else 0


def _run_pools() -> int:
    pools, shares, gone_well = _concerned(), set[int](), list[Pool]()

    def run(pool: Pool) -> int:
        now = timezone.now()
        may = pool.preemption_grace_seconds is not None
        found = plans(pool, asking(pool, now=now), now=now) if may else []
        making_room = [plan for plan in found if plan.found.claims or plan.claim.nominated_gpus is not None]
        shares.update(*(plan.share_ids for plan in making_room))
        changed = _run_pool(pool, making_room, now)
        gone_well.append(pool)
        return changed

    changed = each(pools, run)
    # The shares that a failed pool needs are not known; what it has renewed ends by itself.
    if gone_well == pools:
        _let_borrow(but=shares)
    return changed


def _concerned() -> list[Pool]:
    """Return the pools with a claim that waits, has notice or is a nominee: most have none, most of the time."""
    marked = Q(preempt_at__isnull=False) | Q(nominated_gpus__isnull=False)
    rows = Claim.objects.live().filter(Q(state=ClaimState.QUEUED) | marked)
    keys = {key for pair in rows.values_list("pool", "preempted_for__pool").distinct() for key in pair}
    return list(Pool.objects.filter(pk__in=keys - {None}).order_by("pk"))


def _run_pool(pool: Pool, making_room: Iterable[Plan], now: datetime) -> int:
    changed, wanted, nominees = 0, set[int](), set[int]()
    making_room = list(making_room)
    victims = [victim for plan in making_room for victim in plan.victims]
    ends = find_ends(victims) if any(victim.preempt_at is None for victim in victims) else {}
    for plan in making_room:
        nominees.add(plan.claim.pk)
        changed += _nominate(plan, now)
        for victim in plan.victims:
            wanted.add(victim.pk)
            changed += _tell(victim, plan, now, ends)
            changed += _preempt(victim, plan.claim)
    told = Claim.objects.filter(preempt_at__isnull=False, state__in=(*PLACED, *WAITING))
    of_pool = told.filter(Q(preempted_for__pool=pool) | Q(preempted_for=None))
    of_pool = of_pool.exclude(pk__in=leaving(Node.objects.filter(draining_at__isnull=False)).values("pk"))
    for victim in of_pool.exclude(pk__in=wanted).order_by("pk"):
        changed += _spare(victim)
    # The rotation's nominations are its own (`apps.suspension.rotation`).
    over = Claim.objects.filter(pool=pool, nominated_gpus__isnull=False, rotation__nominated_at=None)
    over = over.exclude(pk__in=nominees)
    for nominee in over.order_by("pk"):
        changed += _forget(nominee)
    return changed


def _locked(*claims: Claim) -> dict[int, Claim]:
    """Return the claims under their row locks, taken in key order."""
    rows = Claim.objects.select_for_update(of=("self",)).select_related("tenant", "pool")
    return {claim.pk: claim for claim in rows.filter(pk__in=[claim.pk for claim in claims]).order_by("pk")}


@transaction.atomic
def _nominate(plan: Plan, now: datetime) -> bool:
    """Withhold its GPUs for the nominee, and stop borrowing in the shares that it still has to be charged to."""
    claim = _locked(plan.claim)[plan.claim.pk]
    if not claim.waiting:
        return False
    shares = CohortShare.objects.filter(pk__in=plan.share_ids)
    due = shares.filter(Q(reclaimed_until=None) | Q(reclaimed_until__lt=now + BORROWING_STOPS / 2))
    if keys := list(due.select_for_update(no_key=True).order_by("pk").values_list("pk", flat=True)):
        CohortShare.objects.filter(pk__in=keys).update(reclaimed_until=now + BORROWING_STOPS)
    gpus = list(plan.found.gpus)
    if claim.nominated_gpus == gpus:
        return False
    if claim.nominated_gpus is None:
        states.note(claim, "nominate", why=plan.found.explanation, gpus=gpus)
    states.move(claim, claim.state, nominated_gpus=gpus)
    return True


@transaction.atomic
def _tell(seen: Claim, plan: Plan, now: datetime, ends: Mapping[int, tuple[str, str]]) -> bool:
    """Give the victim notice, once; a claim that only waits gets no grace. `ends`: what ends it, by its key."""
    found = _locked(seen, plan.claim)
    claim, nominee = found[seen.pk], found[plan.claim.pk]
    if claim.preempt_at is not None or claim.state not in (*PLACED, *WAITING) or not nominee.waiting:
        return False
    grace = 0 if claim.waiting else nominee.pool.preemption_grace_seconds or 0
    preempt_at = now + timedelta(seconds=grace)
    code, why = _why(claim, nominee)
    states.note(claim, "notice", why=why, preempt_at=preempt_at.isoformat())
    action, then = ends[claim.pk]
    facts = {"at": preempt_at, "grace_seconds": grace, "action": action}
    states.tell_of(claim, EventKind.CLAIM_PREEMPTION_NOTICE, why=why, **facts)
    detail = f"{why}: at {preempt_at:%Y-%m-%d %H:%M:%S} UTC {then}"
    reasons = claim.reasons if claim.waiting else [{"code": code, "gpus": 0, "detail": detail}]
    states.move(claim, claim.state, preempt_at=preempt_at, preempted_for=nominee, reasons=reasons)
    return True


@transaction.atomic
def _preempt(seen: Claim, seen_nominee: Claim) -> bool:
    """Preempt the victim if its time has come and the nominee still waits."""
    found = _locked(seen, seen_nominee)
    claim, nominee = found[seen.pk], found[seen_nominee.pk]
    due = claim.preempt_at is not None and claim.preempt_at <= timezone.now()
    if claim.ends_with_its_pod or not due or claim.state not in (*PLACED, *WAITING) or not nominee.waiting:
        return False
    code, why = _why(claim, nominee)
    if is_spare(claim):
        return _shrink(claim, code, why)
    then = "the claim is queued again"
    if claim.pool.preempt_by == PreemptBy.SUSPEND and claim.state in PLACED:
        refusal = try_suspend(claim, by=SuspendedBy.RECLAIM, why=why)
        if refusal is None:
            return True
        then += f", as it could not be suspended. {refusal}"
    states.note(claim, "preempt", why=why, state=claim.state)
    states.tell_of(claim, EventKind.CLAIM_PREEMPTED, why=why)
    reasons = [{"code": code, "gpus": 0, "detail": f"{why}: {then}"}]
    if not end_assignments(claim, reasons=reasons):
        states.charge_to(claim, dict.fromkeys(claim.charged, 0))
        states.move(claim, ClaimState.QUEUED, reasons=reasons, **states.NOT_PREEMPTED)
    return True


def _shrink(claim: Claim, code: str, why: str) -> bool:
    """Release a spare member of an elastic group; it is not queued again, as the group grows anew where it can."""
    detail = f"{why}: its group goes on without it"
    states.note(claim, "shrink", why=why, state=claim.state)
    states.tell_of(claim, EventKind.CLAIM_PREEMPTED, why=detail)
    values = {"reasons": [{"code": code, "gpus": 0, "detail": detail}], **states.NOT_PREEMPTED}
    if not end_assignments(claim, **values):
        states.charge_to(claim, dict.fromkeys(claim.charged, 0))
        states.move(claim, ClaimState.RELEASED, **values)
    return True


def due_with_their_pods() -> QuerySet[Claim]:
    """Return the claims whose pods are to end now, as their nominees still wait."""
    due = Claim.objects.filter(preempt_at__lte=timezone.now(), state__in=PLACED, preempted_for__state__in=WAITING)
    return due.filter(pod__has_key="uid")


@transaction.atomic
def end_with_pod(seen: Claim) -> None:
    """Record the preemption of a claim whose pod its cluster has begun to end. It is released with the pod."""
    claim = Claim.objects.select_related("tenant", "pool", "preempted_for").get(pk=seen.pk)
    if claim.preempted_for is not None:
        (_, why), pod = _why(claim, claim.preempted_for), claim.pod or {}
        states.note(claim, "preempt", why=why, state=claim.state, pod=f"{pod.get('namespace')}/{pod.get('name')}")
        states.tell_of(claim, EventKind.CLAIM_PREEMPTED, why=why)


def _why(claim: Claim, nominee: Claim) -> tuple[str, str]:
    """Return the reason's code and text; another tenant is not named."""
    return ("outranked", OUTRANKED) if claim.tenant_id == nominee.tenant_id else ("reclaimed", CHOSEN)


@transaction.atomic
def _spare(seen: Claim) -> bool:
    claim = _locked(seen)[seen.pk]
    if claim.preempt_at is None or claim.state not in (*PLACED, *WAITING):
        return False
    states.note(claim, "spared", why=SPARED)
    states.tell_of(claim, EventKind.CLAIM_PREEMPTION_SPARED, why=SPARED)
    states.move(claim, claim.state, reasons=[], **states.NOT_PREEMPTED)
    return True


@transaction.atomic
def _forget(seen: Claim) -> bool:
    """Remove the nomination of a claim that is placed or gone, or for which no more room can be made."""
    claim = _locked(seen)[seen.pk]
    claim.change(nominated_gpus=None)
    events.wake_scheduler(claim.pool)
    return True


@transaction.atomic
def _let_borrow(*, but: Iterable[int]) -> None:
    rows = CohortShare.objects.filter(reclaimed_until__isnull=False).exclude(pk__in=but)
    over = list(rows.select_for_update(no_key=True).order_by("pk"))
    rows.filter(pk__in=[share.pk for share in over]).update(reclaimed_until=None)
    for cohort in sorted({share.cohort for share in over}):
        events.wake_for_cohort(cohort)
