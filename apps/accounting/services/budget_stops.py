"""Budgets that stop: claims of a nearly spent budget get notice, and end at the moment at which it is spent.

Level-triggered. Each run counts what is spent to the microsecond, predicts from the present rate when all is spent, and
1. gives notice once the grace before that moment begins, to every claim that is not spared,
2. withdraws the notice if the budget was raised, or lasts longer than the grace for other reasons,
3. ends the claims once the budget is spent and the grace since the notice has passed, each in its own transaction.
A claim that starts within the grace gets what is left of it. The claims of pods end with their pods, which their
clusters end, and are left alone.
"""

from datetime import datetime, timedelta

from django.db import transaction
from django.db.models import Q
from django.utils import timezone

from apps.quotas.models import Budget, BudgetPeriod, EventKind
from apps.quotas.models.budget import STOPPING, WhenSpent
from apps.quotas.principals import SYSTEM
from apps.scheduling.models import Claim
from apps.scheduling.models.claim import PLACED
from apps.scheduling.services.charging import states
from apps.scheduling.services.charging.budgets import expected_spent_at, standing_of
from apps.scheduling.services.claims.lifecycle import end_assignments, locked, release_claim
from apps.scheduling.services.failures import each

WHY = "Its tenant's budget of GPU-hours is spent"
CODE = "budget-stop"
SPARED = "The budget of its tenant lasts longer again"
# A prediction that moves by less, as claims come and go, does not withdraw a notice.
STEADY = timedelta(minutes=1)
# The time between two runs (`gpucloud.periodic_tasks`). Notice is given one run early: no claim outlasts its budget.
BETWEEN = timedelta(seconds=5)


def drive() -> int:
    """Run once over all budgets that end claims; return the number of claims changed."""
    concerned = Budget.objects.filter(Q(when_spent__in=STOPPING) | Q(periods__stop_told_at__isnull=False))
    return each(Budget.objects.filter(pk__in=concerned.values("pk")).order_by("pk"), _run)


def _run(seen: Budget) -> int:
    changed, due = _announce(seen.pk, timezone.now())
    return changed + each(due, lambda claim: _end(claim, seen.pk))


def _lock(pk: int) -> Budget | None:
    """Return the budget under its row lock: of two runs at once the second sees the notices of the first."""
    return Budget.objects.select_for_update(of=("self",)).select_related("tenant").filter(pk=pk).first()


@transaction.atomic
def _announce(pk: int, now: datetime) -> tuple[int, list[Claim]]:
    """Give or withdraw notice; return the number of claims changed, and the claims that are to end now."""
    budget = _lock(pk)
    standing = None if budget is None else standing_of(budget, now=now)
    if budget is None:
        return 0, []
    old = budget.periods.filter(stop_told_at__isnull=False)
    if standing is not None:
        old = old.exclude(starts_at=standing.starts_at)
    changed = sum(_withdraw(budget, row) for row in old)
    if standing is None:
        return changed, []
    row, _ = BudgetPeriod.objects.get_or_create(
        budget=budget,
        starts_at=standing.starts_at,
        defaults={"ends_at": standing.ends_at, "counted_until": standing.starts_at},
    )
    grace = timedelta(seconds=budget.grace_seconds)
    row.expected_at = spent_at = expected_spent_at(budget, standing, now)
    stops = budget.when_spent in STOPPING and spent_at is not None
    if spent_at is None or not stops or spent_at - now > grace + (STEADY if row.stop_told_at else BETWEEN):
        if row.stop_told_at is not None:
            changed += _withdraw(budget, row)
        row.save()
        return changed, []
    row.stop_told_at = row.stop_told_at or now
    row.stops_at = max(
        row.stop_told_at + grace, min(spent_at, row.stops_at or spent_at) if spent_at <= now else spent_at
    )
    changed += _tell(budget, row)
    row.save()
    spent = standing.spent_us >= standing.budget_us
    return changed, list(_running(budget)) if spent and row.stops_at <= now else []


def _running(budget: Budget) -> list[Claim]:
    """Return the claims on GPUs that end with the budget, in key order."""
    rows = Claim.objects.filter(tenant=budget.tenant_id, state__in=PLACED, instance_of=None)
    if budget.spares_reserved:
        rows = rows.filter(reservation=None)
    if budget.spared_priority is not None:
        rows = rows.filter(priority__lt=budget.spared_priority)
    found = rows.select_related("tenant", "pool").order_by("pk")
    return [claim for claim in found if not claim.ends_with_its_pod]


def _tell(budget: Budget, row: BudgetPeriod) -> int:
    """Give notice to those that have none yet."""
    told = set(row.told_claims)
    news = [claim for claim in _running(budget) if claim.uid not in told]
    assert row.stops_at is not None
    for seen in news:
        claim = locked(seen)
        if claim.state not in PLACED:
            continue
        then = "it goes back to the queue" if budget.when_spent == WhenSpent.REQUEUE else "it is released"
        detail = f"{WHY} at {row.stops_at:%Y-%m-%d %H:%M:%S} UTC, at the present rate: then {then}"
        facts = {"at": row.stops_at, "grace_seconds": budget.grace_seconds, "action": budget.when_spent}
        states.note(claim, "notice", why=WHY, budget=budget.pk, preempt_at=row.stops_at.isoformat())
        states.tell_of(claim, EventKind.CLAIM_PREEMPTION_NOTICE, why=detail, **facts)
        states.move(claim, claim.state, reasons=[{"code": CODE, "gpus": 0, "detail": detail}])
    row.told_claims = [*row.told_claims, *(claim.uid for claim in news)]
    return len(news)


def _withdraw(budget: Budget, row: BudgetPeriod) -> int:
    """Take the notice back from the claims that still run."""
    changed = 0
    for seen in Claim.objects.filter(uid__in=row.told_claims, state__in=PLACED).order_by("pk"):
        claim = locked(seen)
        # A claim that was queued again and is placed anew has no notice any more.
        if claim.state not in PLACED or not any(reason["code"] == CODE for reason in claim.reasons):
            continue
        states.note(claim, "spared", why=SPARED, budget=budget.pk)
        states.tell_of(claim, EventKind.CLAIM_PREEMPTION_SPARED, why=SPARED)
        states.move(claim, claim.state, reasons=[reason for reason in claim.reasons if reason["code"] != CODE])
        changed += 1
    row.stop_told_at, row.stops_at, row.told_claims = None, None, []
    row.save()
    return changed


@transaction.atomic
def _end(seen: Claim, pk: int) -> bool:
    """End the claim, unless the budget was changed meanwhile: its lock and its count decide."""
    budget, now = _lock(pk), timezone.now()
    standing = None if budget is None else standing_of(budget, now=now)
    if budget is None or standing is None or standing.spent_us < standing.budget_us:
        return False
    claim = locked(seen)
    if budget.when_spent not in STOPPING or claim.state not in PLACED:
        return False
    if budget.when_spent == WhenSpent.RELEASE:
        release_claim(principal=SYSTEM, claim=claim, why="its tenant's budget of GPU-hours is spent")
        return True
    states.note(claim, "preempt", why=WHY, state=claim.state, budget=budget.pk)
    states.tell_of(claim, EventKind.CLAIM_PREEMPTED, why=WHY)
    detail = f"{WHY}: the claim is queued again, and starts in the next period or with a larger budget"
    return end_assignments(claim, preempt_at=now, reasons=[{"code": CODE, "gpus": 0, "detail": detail}])
