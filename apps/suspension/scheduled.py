"""Claims with a schedule: suspended outside of their weekly window, after a notice, and resumed inside it.

Level-triggered: each run compares every such claim with its window. A claim that its owner resumed while the window is
closed runs until the end of the next one.
"""

from datetime import datetime, timedelta

from django.db import transaction
from django.db.models import Q
from django.utils import timezone

from apps.quotas.models import AuditEvent, EventKind
from apps.scheduling import events
from apps.scheduling.models import Claim, ClaimState
from apps.scheduling.models.orders import SuspendedBy
from apps.scheduling.services.charging import states
from apps.scheduling.services.claims.lifecycle import locked
from apps.scheduling.services.claims.suspending import find_refusal, resume, try_suspend
from apps.scheduling.services.claims.suspension_reports import SUSPEND_REFUSED
from apps.scheduling.services.failures import each
from gpucloud.schedules import Schedule, parse

# The holder knows it so long before, also where the claim came to its GPUs outside of its window.
NOTICE = timedelta(minutes=5)
WHY = "Its schedule is over"
# The code of the reason that a claim shows while its window is closed and it could not be suspended.
REFUSED = "schedule-refused"


def drive() -> int:
    """Give notices, suspend, resume, and withdraw what is over; return the number of claims changed."""
    by_schedule = Q(suspended_by=SuspendedBy.SCHEDULE, state=ClaimState.SUSPENDED)
    claims = Claim.objects.filter(
        ~Q(schedule="") & Q(state=ClaimState.ACTIVE) | by_schedule | Q(suspends_at__lt=_soon())
    )
    return each(claims.select_related("tenant", "pool").order_by("pk"), _advance)


def _soon() -> datetime:
    return timezone.now() + 2 * NOTICE


@transaction.atomic
def _advance(seen: Claim) -> bool:
    claim, now = locked(seen), timezone.now()
    window = parse(claim.schedule) if claim.schedule else None
    is_open = window is None or window.is_open(now)
    if claim.state == ClaimState.SUSPENDED and claim.suspended_by == SuspendedBy.SCHEDULE:
        return is_open and resume(claim, by=SuspendedBy.SCHEDULE)
    if claim.state != ClaimState.ACTIVE or window is None:
        return _withdraw(claim)
    if is_open and find_refusal(claim, REFUSED):
        return _clear(claim)
    due = _due(claim, window, now)
    if due is None:
        return _withdraw(claim)
    if claim.suspends_at is None:
        return due - NOTICE <= now and _notify(claim, due if is_open else now + NOTICE)
    return claim.suspends_at <= now and _suspend(claim)


def _due(claim: Claim, window: Schedule, now: datetime) -> datetime | None:
    """Return the end of the claim's window, past or next; None if it is to run on, or its window has no end.

    A claim that the platform could not suspend at this end is not tried again before the next one, and one that came
    back since was resumed by its owner.
    """
    closed = window.closed_since(now)
    if closed is None:
        return window.closes_at(now)
    refused = find_refusal(claim, REFUSED) or find_refusal(claim, SUSPEND_REFUSED)
    return None if refused or _was_resumed(claim, closed) else closed


def _was_resumed(claim: Claim, since: datetime) -> bool:
    """Return True if an owner has resumed the claim since then, as the audit log says."""
    orders = AuditEvent.objects.filter(object_type="claim", object_id=str(claim.uid), action="claim.resume")
    return orders.filter(at__gte=since, after__by=SuspendedBy.OWNER).exists()


def _notify(claim: Claim, at: datetime) -> bool:
    claim.change(suspends_at=at)
    states.note(claim, "notice", why=WHY, suspends_at=at.isoformat())
    facts = {"at": at, "grace_seconds": int(NOTICE.total_seconds()), "action": "suspend"}
    states.tell_of(claim, EventKind.CLAIM_PREEMPTION_NOTICE, why=WHY, **facts)
    events.claim_changed_on_commit(claim)
    return True


def _suspend(claim: Claim) -> bool:
    """Suspend the claim, once: if that is refused it stays, and its reasons say why."""
    claim.change(suspends_at=None)
    refusal = try_suspend(claim, by=SuspendedBy.SCHEDULE, why=f"{WHY}: it resumes by itself ({claim.schedule})")
    if refusal is not None:
        detail = f"{WHY}, and it could not be suspended. {refusal}"
        claim.change(reasons=[{"code": REFUSED, "gpus": 0, "detail": detail}])
        states.note(claim, "suspend-failed", action="suspend", why=detail)
        states.tell_of(claim, EventKind.CLAIM_SUSPEND_FAILED, action="suspend", why=detail)
        events.claim_changed_on_commit(claim)
    return True


def _withdraw(claim: Claim) -> bool:
    """Withdraw a notice whose end is over: the claim is no longer active, or has no schedule any more."""
    if claim.suspends_at is None:
        return False
    claim.change(suspends_at=None)
    events.claim_changed_on_commit(claim)
    return True


def _clear(claim: Claim) -> bool:
    """Remove the reason of a claim whose window is open again."""
    claim.change(reasons=[])
    events.claim_changed_on_commit(claim)
    return True
