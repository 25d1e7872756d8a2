"""Creation and change of budgets. `apps.scheduling` computes their use and its consequences."""

from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from django.db import transaction

from apps.quotas.models import Budget, Tenant
from apps.quotas.models.budget import Period
from apps.quotas.principals import Principal
from apps.quotas.services import audit
from apps.quotas.services.names import NameTaken, refuse_taken
from gpucloud.api import etags

WEEK = timedelta(days=7)
# What a budget does to running claims once it is spent.
STOP = ("when_spent", "grace_seconds", "spares_reserved", "spared_priority")


def period_at(budget: Budget, now: datetime) -> tuple[datetime, datetime] | None:
    """Return beginning and end of the budget's period at this time; None if it has none."""
    day = now.replace(hour=0, minute=0, second=0, microsecond=0)
    if budget.period == Period.WEEK:
        monday = day - timedelta(days=day.weekday())
        return monday, monday + WEEK
    if budget.period == Period.MONTH:
        first = day.replace(day=1)
        return first, (first + timedelta(days=31)).replace(day=1)
    assert budget.starts_at is not None
    assert budget.ends_at is not None
    return (budget.starts_at, budget.ends_at) if budget.starts_at <= now < budget.ends_at else None


@transaction.atomic
def create_budget(
    *,
    principal: Principal,
    tenant: Tenant,
    period: str,
    gpu_hours: Decimal,
    starts_at: datetime | None = None,
    ends_at: datetime | None = None,
    **stop: Any,
) -> Budget:
    """Limit a tenant's reservations. Those of the present period count. `stop`: values of STOP. Raises NameTaken."""
    principal.require_operator()

    def describe() -> NameTaken:
        taken = Budget.objects.get(tenant=tenant, period=period, starts_at=starts_at)
        words = f"{tenant.slug} already has a budget for this period: change budget {taken.pk}."
        return NameTaken(words, budget=taken.pk)

    with refuse_taken(describe):
        budget = Budget.objects.create(
            tenant=tenant, period=period, gpu_hours=gpu_hours, starts_at=starts_at, ends_at=ends_at, **stop
        )
    audit.record(principal, "budget.create", budget, after=_facts(budget))
    return budget


@transaction.atomic
def change_budget(
    *,
    principal: Principal,
    budget: Budget,
    gpu_hours: Decimal | None = None,
    versions: etags.Versions = None,
    **stop: Any,
) -> Budget:
    """Set another amount, or values of STOP. A new amount starts the period's warnings again.

    Raises PreconditionFailed.
    """
    principal.require_operator()
    budget = etags.lock(budget, versions, "tenant")
    before = _facts(budget)
    before_hours = budget.gpu_hours
    budget.change(gpu_hours=before_hours if gpu_hours is None else gpu_hours, **stop)
    if budget.gpu_hours != before_hours:
        budget.periods.update(percent_told=0)
    audit.record(principal, "budget.change", budget, before=before, after=_facts(budget))
    return budget


@transaction.atomic
def delete_budget(*, principal: Principal, budget: Budget, versions: etags.Versions = None) -> None:
    """Remove the budget. Raises PreconditionFailed."""
    principal.require_operator()
    budget = etags.lock(budget, versions, "tenant")
    audit.record(principal, "budget.delete", budget, before=_facts(budget))
    budget.delete()


def _facts(budget: Budget) -> dict[str, Any]:
    times = {"starts_at": budget.starts_at, "ends_at": budget.ends_at}
    return {
        "period": budget.period,
        "gpu_hours": str(budget.gpu_hours),
        **{name: getattr(budget, name) for name in STOP},
        **{name: moment and moment.isoformat() for name, moment in times.items()},
    }
