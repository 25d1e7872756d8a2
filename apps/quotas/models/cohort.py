"""What the tenants of one cohort lend one another.

A share belongs to a cohort, a pool (or all pools) and a resource, and stands over the quotas that its tenants have for
these. A quota lends what it may (`ResourceQuota.lendable`) and keeps the rest for its tenant alone. What is used above
the kept part, by whomever, comes out of the share: so the sum of what is used never passes the sum of what is `hard`.
A share is written only by `apps.quotas.services.cohorts`; the constraint stands behind it.
"""

from django.db import models
from django.db.models import F, Q
from django.utils import timezone

from apps.quotas.models.pool import Pool
from apps.quotas.models.resource import Resource


class CohortShare(models.Model):
    """The sum of what a cohort's quotas lend of one resource, and how much of it is taken."""

    cohort = models.CharField(max_length=63)
    pool = models.ForeignKey(Pool, on_delete=models.PROTECT, null=True, related_name="+")
    resource = models.CharField(max_length=20, choices=Resource)
    lendable = models.BigIntegerField(default=0)
    taken = models.BigIntegerField(default=0)
    # Until then nobody borrows more: a tenant of the cohort is about to get back what it lent.
    reclaimed_until = models.DateTimeField(null=True)
    excess = models.BigIntegerField(default=0, help_text="Taken above `lendable` when a quota was lowered.")

    class Meta:
        ordering = ["pk"]
        constraints = [
            models.UniqueConstraint(fields=["cohort", "pool", "resource"], name="share_once", nulls_distinct=False),
            models.CheckConstraint(
                condition=Q(lendable__gte=0, taken__gte=0, excess__gte=0), name="share_amounts_not_negative"
            ),
            models.CheckConstraint(condition=Q(taken__lte=F("lendable") + F("excess")), name="share_never_exceeded"),
        ]

    def __str__(self) -> str:
        return f"{self.cohort}/{self.pool or '*'}/{self.resource}"

    @property
    def reclaimed(self) -> bool:
        """Whether nobody borrows more for now."""
        return self.reclaimed_until is not None and self.reclaimed_until > timezone.now()
