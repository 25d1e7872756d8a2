"""Shared capacity of a cohort's tenants.

A share belongs to a cohort, a pool (or all pools) and a resource, and covers its tenants' quotas of these. A quota
lends part of itself (`ResourceQuota.lendable`) and keeps the rest for its tenant. Use above the kept part, by any
tenant, comes out of the share: so the sum of `used` never exceeds the sum of `hard`.

Only `apps.quotas.services.cohorts` writes a share, backed by the constraint.
"""

from django.db import models
from django.db.models import F, Q
from django.utils import timezone

from apps.quotas.models.pool import Pool
from apps.quotas.models.row import checks


class CohortShare(models.Model):
    """Sum of a cohort's lendable quotas of one resource, and the part that is taken."""

    cohort = models.CharField(max_length=63)
    pool = models.ForeignKey(Pool, on_delete=models.PROTECT, null=True, related_name="+")
    resource = models.CharField(max_length=20)
    lendable = models.BigIntegerField(default=0)
    taken = models.BigIntegerField(default=0)
    # No further borrowing until then: a tenant of the cohort reclaims what it lent.
    reclaimed_until = models.DateTimeField(null=True)
    excess = models.BigIntegerField(default=0, help_text="Taken above `lendable` when a quota was lowered.")

    class Meta:
        ordering = ["pk"]
        constraints = [
            models.UniqueConstraint(fields=["cohort", "pool", "resource"], name="share_once", nulls_distinct=False),
            *checks(
                share_amounts_not_negative=Q(lendable__gte=0, taken__gte=0, excess__gte=0),
                share_never_exceeded=Q(taken__lte=F("lendable") + F("excess")),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.cohort}/{self.pool or '*'}/{self.resource}"

    @property
    def reclaimed(self) -> bool:
        """True while no further borrowing is allowed."""
        return self.reclaimed_until is not None and self.reclaimed_until > timezone.now()
