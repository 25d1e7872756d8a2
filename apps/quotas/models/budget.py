"""Budgets: GPU-hours that a tenant may reserve in a week, in a month, or between two times."""

from django.db import models
from django.db.models import F, Q

from apps.quotas.models.row import Owned, Row, checks
from apps.quotas.models.tenant import Tenant

HOUR_PLACES = 3
# Percent-microseconds of the largest budget; see `apps.scheduling.core.metering`.
CORE_US_DIGITS = 30


class Period(models.TextChoices):
    """Period of a budget. Weeks begin on Monday, months on the first, both at midnight UTC."""

    MONTH = "month"
    WEEK = "week"
    CUSTOM = "custom"


class BudgetQuerySet(Owned["Budget"]):
    """Budgets, filtered by principal."""


class Budget(Row):
    """A tenant's GPU-hours in each period; `starts_at` and `ends_at` for `custom` only."""

    audited = ("budget", "pk")
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="budgets")
    period = models.CharField(max_length=10, choices=Period)
    starts_at = models.DateTimeField(null=True)
    ends_at = models.DateTimeField(null=True)
    gpu_hours = models.DecimalField(max_digits=14, decimal_places=HOUR_PLACES)

    objects = BudgetQuerySet.as_manager()

    class Meta:
        ordering = ["pk"]
        constraints = [
            models.UniqueConstraint(fields=["tenant", "period", "starts_at"], name="budget_once", nulls_distinct=False),
            *checks(
                budget_period_known=Q(period__in=Period.values),
                budget_not_negative=Q(gpu_hours__gte=0),
                budget_times_are_customs=(
                    Q(period="custom", starts_at__lt=F("ends_at"))
                    | (~Q(period="custom") & Q(starts_at=None, ends_at=None))
                ),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.gpu_hours} GPU-hours a {self.period} of {self.tenant}"


class BudgetPeriod(models.Model):
    """Counted usage of one period of a budget, and its warnings."""

    budget = models.ForeignKey(Budget, on_delete=models.CASCADE, related_name="periods")
    starts_at = models.DateTimeField()
    ends_at = models.DateTimeField()
    counted_until = models.DateTimeField()
    counted_us = models.DecimalField(max_digits=CORE_US_DIGITS, decimal_places=0, default=0)
    percent_told = models.PositiveSmallIntegerField(default=0, help_text="The highest threshold that was announced.")

    class Meta:
        ordering = ["pk"]
        constraints = [models.UniqueConstraint(fields=["budget", "starts_at"], name="budget_period_once")]

    def __str__(self) -> str:
        return f"{self.budget} from {self.starts_at:%Y-%m-%d}"
