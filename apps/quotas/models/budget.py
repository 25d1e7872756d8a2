"""Budgets: GPU-hours that a tenant may reserve in a week, in a month, or between two times."""

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import F, Q
from django.utils.translation import gettext_lazy as _

from apps.quotas.models.row import Owned, Row, checks
from apps.quotas.models.tenant import Tenant

HOUR_PLACES = 3
# Percent-microseconds of the largest budget; see `apps.scheduling.core.metering`.
CORE_US_DIGITS = 30
DEFAULT_GRACE_SECONDS, MOST_GRACE_SECONDS = 600, 7 * 24 * 3600


class Period(models.TextChoices):
    """Period of a budget. Weeks begin on Monday, months on the first, both at midnight UTC."""

    MONTH = "month"
    WEEK = "week"
    CUSTOM = "custom"


class WhenSpent(models.TextChoices):
    """The consequence of a spent budget."""

    REPORT = "report", _("Only report it")
    REFUSE = "refuse", _("Refuse new claims and growth")
    REQUEUE = "requeue", _("Refuse them, and put running claims back in the queue")
    RELEASE = "release", _("Refuse them, and release running claims")


# With these, running claims end when the budget is spent.
STOPPING = (WhenSpent.REQUEUE, WhenSpent.RELEASE)
HELP = {
    "when_spent": _("At 100 %. Claims in the queue go on by themselves in the next period."),
    "grace_seconds": _("Time between the notice and the end of a running claim, in seconds."),
    "spares_reserved": _("Claims in reservations go on when others are ended."),
    "spared_priority": _("Claims with this priority or a higher one go on when others are ended; empty: none do."),
}


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
    when_spent = models.CharField(max_length=10, choices=WhenSpent, default=WhenSpent.REFUSE, db_default="refuse")
    grace_seconds = models.PositiveIntegerField(default=DEFAULT_GRACE_SECONDS, db_default=DEFAULT_GRACE_SECONDS)
    spares_reserved = models.BooleanField(default=False, db_default=False)
    spared_priority = models.SmallIntegerField(null=True)

    objects = BudgetQuerySet.as_manager()

    class Meta:
        ordering = ["pk"]
        constraints = [
            models.UniqueConstraint(fields=["tenant", "period", "starts_at"], name="budget_once", nulls_distinct=False),
            *checks(
                budget_period_known=Q(period__in=Period.values),
                budget_not_negative=Q(gpu_hours__gte=0),
                budget_when_spent_known=Q(when_spent__in=WhenSpent.values),
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
    # The time at which it is spent at the rate of the last count; None: not within the period.
    expected_at = models.DateTimeField(null=True)
    # The time of the notice to running claims, the time at which they end, and the uids of those that have it.
    stop_told_at = models.DateTimeField(null=True)
    stops_at = models.DateTimeField(null=True)
    told_claims = ArrayField(models.UUIDField(), default=list)

    class Meta:
        ordering = ["pk"]
        constraints = [models.UniqueConstraint(fields=["budget", "starts_at"], name="budget_period_once")]

    def __str__(self) -> str:
        return f"{self.budget} from {self.starts_at:%Y-%m-%d}"
