"""The measured and the forecast use of claims, in windows of five minutes, and the fits behind the forecasts."""

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import Q

from apps.quotas.models import Tenant
from apps.quotas.models.row import checks
from apps.scheduling.models import Claim


def windows() -> "ArrayField[list[float | None], list[float | None]]":
    """Return a field for a day of windows, in percent of a GPU; NaN where nothing is known."""
    return ArrayField(models.FloatField(null=True))


class UseDay(models.Model):
    """A day (UTC) of a claim: the highest minute of each window, and what was forecast for it."""

    claim = models.ForeignKey(Claim, on_delete=models.CASCADE, related_name="use_days")
    day = models.DateField()
    used = windows()
    expected = windows()
    upper = windows()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["claim", "day"], name="forecast_one_day_a_claim")]
        indexes = [models.Index(fields=["day"], name="forecast_by_day")]

    def __str__(self) -> str:
        return f"{self.claim} on {self.day}"


class ClaimForecast(models.Model):
    """The fit of a claim, or of a tenant for its young claims, and the forecast of the present window.

    `offset` is corrected with each window. `at` is the begin of the window that `expected` and `upper` are for.
    """

    claim = models.OneToOneField(Claim, on_delete=models.CASCADE, null=True, related_name="forecast")
    tenant = models.OneToOneField(Tenant, on_delete=models.CASCADE, null=True, related_name="forecast")
    risk_percent = models.PositiveSmallIntegerField()
    days = models.FloatField(default=0)
    fitted_at = models.DateTimeField()
    # Null: too little is known.
    fit_expected = ArrayField(models.FloatField(), null=True)
    fit_upper = ArrayField(models.FloatField(), null=True)
    offset = models.FloatField(default=0)
    # The tenant's fit is used, because too little of the claim is known.
    of_tenant = models.BooleanField(default=False)
    at = models.DateTimeField(null=True)
    expected = models.FloatField(null=True)
    upper = models.FloatField(null=True)
    # The number of forecasts that were compared with the use, and the part that was too low: a mean over about a week.
    judged = models.PositiveIntegerField(default=0)
    wrong_percent = models.FloatField(null=True)

    class Meta:
        constraints = checks(
            forecast_of_one=Q(claim=None, tenant__isnull=False) | Q(claim__isnull=False, tenant=None),
            forecast_risk_in_range=Q(risk_percent__gte=1, risk_percent__lte=50),
        )

    def __str__(self) -> str:
        return f"forecast of {self.claim or self.tenant}"
