"""Quotas and their ledger.

`used` is written only by conditional UPDATEs (`apps.quotas.services.charging`): the WHERE clause is the check. The
constraint below stands behind it. `excess` is what a tenant already held above `hard` when `hard` was lowered: it only
ever falls, so a lowered quota admits nothing new and takes nothing away by itself.
"""

from typing import TYPE_CHECKING

from django.db import models
from django.db.models import F, Q

from apps.quotas.models.pool import Pool
from apps.quotas.models.row import Row
from apps.quotas.models.tenant import Tenant

if TYPE_CHECKING:
    from apps.quotas.principals import Principal


class Resource(models.TextChoices):
    """What can be limited."""

    CORE_PERCENT = "core_percent"
    MEMORY_MIB = "memory_mib"
    VGPUS = "vgpus"
    GPUS = "gpus"


# Without a row for one of these a tenant holds none of it; without a row for the others it is not limited separately.
ZERO_WITHOUT_ROW = (Resource.CORE_PERCENT, Resource.MEMORY_MIB)


class ResourceQuotaQuerySet(models.QuerySet["ResourceQuota"]):
    """Quotas, asked with who is asking."""

    def visible_to(self, principal: "Principal") -> "ResourceQuotaQuerySet":
        """Every quota to an operator; to others their tenants'."""
        return self if principal.is_operator else self.filter(tenant__in=principal.roles)


class ResourceQuota(Row):
    """What one tenant may hold of one resource, in one pool or (pool null) in all pools together."""

    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="quotas")
    pool = models.ForeignKey(Pool, on_delete=models.PROTECT, related_name="quotas", null=True)
    resource = models.CharField(max_length=20, choices=Resource)
    hard = models.BigIntegerField(null=True, help_text="Null: unlimited. Zero: none.")
    used = models.BigIntegerField(default=0)
    borrowed = models.BigIntegerField(default=0)
    excess = models.BigIntegerField(default=0, help_text="Held above `hard` when it was lowered.")

    objects = ResourceQuotaQuerySet.as_manager()

    class Meta:
        ordering = ["pk"]
        constraints = [
            models.UniqueConstraint(fields=["tenant", "pool", "resource"], name="quota_once", nulls_distinct=False),
            models.CheckConstraint(condition=Q(resource__in=Resource.values), name="quota_resource_known"),
            models.CheckConstraint(condition=Q(hard__gte=0) | Q(hard__isnull=True), name="quota_hard_not_negative"),
            models.CheckConstraint(
                condition=Q(used__gte=0, borrowed__gte=0, excess__gte=0), name="quota_amounts_not_negative"
            ),
            models.CheckConstraint(
                condition=Q(hard__isnull=True) | Q(used__lte=F("hard") + F("excess")), name="quota_never_exceeded"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.tenant}/{self.pool or '*'}/{self.resource}"


class LedgerEntry(models.Model):
    """One change of one quota's numbers. Append-only: a trigger refuses updates and deletions.

    Holds the claim's uid, not a foreign key: the ledger outlives claims, and claims live in a higher app.
    """

    class Kind(models.TextChoices):
        """Why the numbers changed."""

        SET = "set"
        CHARGE = "charge"
        REFUND = "refund"

    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="ledger")
    pool = models.ForeignKey(Pool, on_delete=models.PROTECT, null=True, related_name="+")
    resource = models.CharField(max_length=20, choices=Resource)
    kind = models.CharField(max_length=10, choices=Kind)
    amount = models.BigIntegerField(help_text="Added to `used`; negative for a refund, zero when `hard` was set.")
    used = models.BigIntegerField(help_text="`used` after this entry.")
    hard = models.BigIntegerField(null=True, help_text="`hard` after this entry.")
    claim_uid = models.UUIDField(null=True, db_index=True)
    actor = models.CharField(max_length=200)
    at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["pk"]
        indexes = [models.Index(fields=["tenant", "resource", "-id"], name="ledger_of_quota")]

    def __str__(self) -> str:
        return f"{self.kind} {self.amount} {self.resource}"
