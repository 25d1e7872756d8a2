"""Quotas and their ledger.

Only conditional UPDATEs write `used` (`apps.quotas.services.charging`): the WHERE clause is the check, backed by the
constraint below. `excess` is the amount that a tenant already held above its limit when that was lowered: it only ever
falls, so a lowered quota admits nothing new and takes nothing away by itself.

A quota of a tenant in a cohort has a `share` (`apps.quotas.models.cohort`): it may be used above `hard`, by at most
`borrowing_limit`, as far as the others leave room. Unlimited quotas neither borrow nor lend.
"""

from typing import Any

from django.db import models
from django.db.models import F, Q
from django.utils.translation import gettext_lazy as _

from apps.quotas.models.cohort import CohortShare
from apps.quotas.models.pool import Pool
from apps.quotas.models.resource import RESOURCE, profile_of
from apps.quotas.models.row import Owned, Row, checks
from apps.quotas.models.tenant import Tenant


class ResourceQuotaQuerySet(Owned["ResourceQuota"]):
    """Quotas, filtered by principal."""


def within(more: Any) -> Q:
    """Return the condition that `used` is within `hard`, the borrowing above it, and `more`."""
    borrowing = Q(share__isnull=False) & (
        Q(borrowing_limit__isnull=True) | Q(used__lte=F("hard") + F("borrowing_limit") + more)
    )
    return Q(hard__isnull=True) | Q(used__lte=F("hard") + more) | borrowing


class ResourceQuota(Row):
    """A tenant's limit of one resource, in one pool or (pool null) in all pools together."""

    audited = ("quota", "pk")
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="quotas")
    pool = models.ForeignKey(Pool, on_delete=models.PROTECT, related_name="quotas", null=True)
    # One of `Resource`, or a MIG profile's.
    resource = models.CharField(max_length=20)
    hard = models.BigIntegerField(null=True, help_text="Null: unlimited. Zero: none.")
    used = models.BigIntegerField(default=0)
    borrowed = models.BigIntegerField(default=0, help_text="Used above `hard`.")
    excess = models.BigIntegerField(default=0, help_text="Held above what it may when that was lowered.")
    borrowing_limit = models.BigIntegerField(null=True, help_text="Null: all that the cohort leaves.")
    lending_limit = models.BigIntegerField(null=True, help_text="Null: all of `hard`.")
    share = models.ForeignKey(CohortShare, on_delete=models.PROTECT, related_name="quotas", null=True)

    objects = ResourceQuotaQuerySet.as_manager()

    class Meta:
        ordering = ["pk"]
        constraints = [
            models.UniqueConstraint(fields=["tenant", "pool", "resource"], name="quota_once", nulls_distinct=False),
            *checks(
                quota_resource_known=Q(resource__regex=RESOURCE),
                quota_hard_not_negative=Q(hard__gte=0) | Q(hard__isnull=True),
                quota_amounts_not_negative=Q(used__gte=0, borrowed__gte=0, excess__gte=0),
                quota_borrowing_limit_not_negative=Q(borrowing_limit__gte=0) | Q(borrowing_limit__isnull=True),
                quota_lending_limit_not_negative=Q(lending_limit__gte=0) | Q(lending_limit__isnull=True),
                quota_never_exceeded=within(F("excess")),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.tenant}/{self.pool or '*'}/{self.resource}"

    @property
    def profile(self) -> str | None:
        """The MIG profile whose instances it counts; None: it is of another resource."""
        return profile_of(self.resource)

    @property
    def most(self) -> int | None:
        """Largest possible `used`, with all borrowing; None if the quota itself sets no bound."""
        if self.hard is None or self.share_id is None:
            return self.hard
        return None if self.borrowing_limit is None else self.hard + self.borrowing_limit

    @property
    def lendable(self) -> int:
        """Part of `hard` that others may use while it is idle."""
        if self.hard is None:
            return 0
        return self.hard if self.lending_limit is None else min(self.hard, self.lending_limit)

    def taken(self, used: int | None = None) -> int:
        """Return the amount taken from the cohort's share: all above the kept part, now or at another `used`."""
        if self.hard is None:
            return 0
        return max(0, (self.used if used is None else used) - (self.hard - self.lendable))

    @property
    def free(self) -> int | None:
        """Amount that can still be charged; None: no bound. Reads the share."""
        bounds = [] if self.most is None else [self.most - self.used]
        if self.share is not None and self.hard is not None:
            if self.share.reclaimed:
                bounds.append(self.hard - self.used)
            kept = max(0, self.hard - self.lendable - self.used)
            bounds.append(kept + max(0, self.share.lendable - self.share.taken))
        return max(0, min(bounds)) if bounds else None

    @property
    def lent(self) -> int:
        """Part of the idle `hard` that others of the cohort use. Reads the share."""
        if self.hard is None or self.free is None:
            return 0
        return max(0, self.hard - self.used - self.free)


class LedgerEntry(models.Model):
    """One change of one quota's amounts. Append-only: a trigger refuses updates and deletions.

    It has the claim's uid instead of a foreign key: the ledger outlives claims, and claims live in a higher app.
    """

    class Kind(models.TextChoices):
        """Kind of a change."""

        SET = "set", _("Set")
        CHARGE = "charge", _("Charge")
        REFUND = "refund", _("Refund")
        REPAIR = "repair", _("Repair")

    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="ledger")
    pool = models.ForeignKey(Pool, on_delete=models.PROTECT, null=True, related_name="+")
    # One of `Resource`, or a MIG profile's.
    resource = models.CharField(max_length=20)
    kind = models.CharField(max_length=10, choices=Kind)
    amount = models.BigIntegerField(help_text="Added to `used`; negative for a refund, zero when `hard` was set.")
    used = models.BigIntegerField(help_text="`used` after this entry.")
    hard = models.BigIntegerField(null=True, help_text="`hard` after this entry.")
    claim_uid = models.UUIDField(null=True, db_index=True)
    actor = models.CharField(max_length=200)
    at = models.DateTimeField(auto_now_add=True)

    class Meta:
        verbose_name_plural = "ledger entries"
        ordering = ["pk"]
        indexes = [models.Index(fields=["tenant", "resource", "-id"], name="ledger_of_quota")]

    def __str__(self) -> str:
        return f"{self.kind} {self.amount} {self.resource}"
