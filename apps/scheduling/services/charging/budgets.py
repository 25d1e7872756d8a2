"""Budgets of GPU-hours: refusal of new requests once a budget is spent, and warnings before.

Spent are the GPU-hours reserved in the period, by the same count as in reports. Hours long past are counted once and
stored, so that a check reads the last minutes only. `apps.accounting.services.budget_stops` ends running claims.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction
from django.db.models import QuerySet
from django.utils import timezone

from apps.quotas.models import Budget, BudgetPeriod, EventKind, Tenant
from apps.quotas.models.budget import STOPPING, WhenSpent
from apps.quotas.principals import SYSTEM
from apps.quotas.services import audit
from apps.quotas.services.budgets import period_at
from apps.quotas.services.webhooks.outbox import tell
from apps.scheduling.core.metering import PER_GPU_HOUR
from apps.scheduling.models import Claim
from apps.scheduling.services.charging.metering import gpu_hours, metered
from gpucloud.errors import Conflict
from gpucloud.fastpath.compiled_queries import compiled_query

THRESHOLDS = (80, 95, 100)
HOUR = timedelta(hours=1)
_RUNNING = {False: "Running claims go on", True: "Running claims end after a notice"}
# Older hours are counted for good: no transaction lasts so long that it would still add to them.
SETTLED_AFTER = timedelta(minutes=5)


class BudgetExceeded(Conflict, code="budget-exceeded", title="Budget spent"):
    """The tenant has spent a budget of GPU-hours."""


@dataclass(frozen=True, slots=True)
class Standing:
    """The amount spent of a budget in one period, up to a moment; in percent-microseconds."""

    starts_at: datetime
    ends_at: datetime
    as_of: datetime
    spent_us: int
    budget_us: int

    @property
    def percent(self) -> int:
        """The part that is spent, rounded down; a budget of nothing is spent from the start."""
        return self.spent_us * 100 // self.budget_us if self.budget_us else 100

    @property
    def gpu_hours_spent(self) -> str:
        """The GPU-hours spent, as decimal text."""
        return gpu_hours(self.spent_us)


def refuse_spent(tenant: Tenant) -> None:
    """Raise BudgetExceeded if the tenant has spent a budget. Called before anything that would reserve more."""
    for budget in _budgets_of(tenant.pk):
        standing = standing_of(budget, now=timezone.now())
        if standing is not None and standing.percent >= 100:
            ended = budget.when_spent in STOPPING
            ends = f"{standing.ends_at:%Y-%m-%d %H:%M} UTC"
            # The amount spent is in the facts only: the text becomes the reason of each waiting claim, and a number
            # that grows by itself would be news in every round.
            raise BudgetExceeded(
                f"{tenant.slug} has spent its {budget.gpu_hours} GPU-hours; this period ends {ends}. "
                f"{_RUNNING[ended]}; ask an operator for more.",
                budget=budget.pk,
                period=budget.period,
                starts_at=standing.starts_at,
                ends_at=standing.ends_at,
                gpu_hours=str(budget.gpu_hours),
                gpu_hours_spent=standing.gpu_hours_spent,
            )


@compiled_query
def _budgets_of(tenant: Any) -> QuerySet[Budget]:
    return Budget.objects.filter(tenant=tenant).exclude(when_spent=WhenSpent.REPORT)


def standing_of(budget: Budget, *, now: datetime) -> Standing | None:
    """Return the standing of the budget at this moment; None if it has no period now."""
    bounds = period_at(budget, now)
    if bounds is None:
        return None
    counted = BudgetPeriod.objects.filter(budget=budget, starts_at=bounds[0]).first()
    since, spent = (counted.counted_until, int(counted.counted_us)) if counted else (bounds[0], 0)
    return _standing(budget, bounds, as_of=max(now, since), spent=spent + _reserved_us(budget, since, now))


def counted_standing(budget: Budget, *, now: datetime) -> Standing | None:
    """Return the standing as last counted, minutes ago at most; it uses the prefetched `periods`, and no query."""
    bounds = period_at(budget, now)
    if bounds is None:
        return None
    counted = next((row for row in budget.periods.all() if row.starts_at == bounds[0]), None)
    since, spent = (counted.counted_until, int(counted.counted_us)) if counted else (bounds[0], 0)
    return _standing(budget, bounds, as_of=since, spent=spent)


def expected_spent_at(budget: Budget, standing: Standing, now: datetime) -> datetime | None:
    """Return the time at which the budget is spent at the present rate, rounded up to the second.

    `now` if it is spent; None if its period ends before.
    """
    if standing.spent_us >= standing.budget_us:
        return now
    hourly_us = _reserved_us(budget, now, now + HOUR)
    left = standing.budget_us - standing.spent_us
    if not hourly_us or left * 3600 >= hourly_us * (standing.ends_at - now).total_seconds():
        return None
    return now + timedelta(seconds=-(-left * 3600 // hourly_us))


def watch_budgets() -> int:
    """Count the hours of all budgets, and warn once for each threshold and period; return the number of warnings."""
    return sum(_watch(pk, timezone.now()) for pk in Budget.objects.order_by("pk").values_list("pk", flat=True))


@transaction.atomic
def _watch(pk: int, now: datetime) -> int:
    budget = Budget.objects.select_for_update(of=("self",)).select_related("tenant").filter(pk=pk).first()
    bounds = None if budget is None else period_at(budget, now)
    if budget is None or bounds is None:
        return 0
    row, _ = BudgetPeriod.objects.get_or_create(
        budget=budget, starts_at=bounds[0], defaults={"ends_at": bounds[1], "counted_until": bounds[0]}
    )
    until = max(row.counted_until, now - SETTLED_AFTER)
    row.counted_us = int(row.counted_us) + _reserved_us(budget, row.counted_until, until)
    row.counted_until = until
    standing = _standing(budget, bounds, as_of=now, spent=int(row.counted_us) + _reserved_us(budget, until, now))
    passed = [level for level in THRESHOLDS if row.percent_told < level <= standing.percent]
    for level in passed:
        _tell(budget, standing, level)
    row.percent_told = max([row.percent_told, *passed])
    row.expected_at = expected_spent_at(budget, standing, now)
    row.save()
    return len(passed)


def _tell(budget: Budget, standing: Standing, level: int) -> None:
    after: dict[str, Any] = {
        "threshold_percent": level,
        "percent": standing.percent,
        "gpu_hours": str(budget.gpu_hours),
        "gpu_hours_spent": standing.gpu_hours_spent,
        "starts_at": standing.starts_at.isoformat(),
        "ends_at": standing.ends_at.isoformat(),
    }
    audit.record(SYSTEM, "budget.spent" if level >= 100 else "budget.warning", budget, after=after)
    tell(EventKind.BUDGET_THRESHOLD, tenant=budget.tenant, budget=budget.pk, **after)


def _reserved_us(budget: Budget, begin: datetime, end: datetime) -> int:
    if begin >= end:
        return 0
    claims = metered(Claim.objects.filter(tenant=budget.tenant_id), begin=begin, end=end)
    return sum(piece.core_us for claim in claims for piece in claim.pieces)


def _standing(budget: Budget, bounds: tuple[datetime, datetime], *, as_of: datetime, spent: int) -> Standing:
    return Standing(*bounds, as_of, spent, int(budget.gpu_hours * PER_GPU_HOUR))
