"""Organisations: a tree above tenants, with quotas that all tenants below an organisation share.

A department is an organisation with a parent. A tenant (a project) belongs to one organisation or to none. What a
tenant is charged counts at each organisation above it, in the same transaction.

An organisation's quota has no ledger: its use is the sum of what the claims of its tenants charge, and their ledger
has each change.
"""

from typing import TYPE_CHECKING

from django.core.validators import RegexValidator
from django.db import models
from django.db.models import F, Q

from apps.quotas.models.pool import Pool
from apps.quotas.models.resource import RESOURCE, profile_of
from apps.quotas.models.row import Row, checks
from apps.quotas.models.tenant import SLUG

if TYPE_CHECKING:
    from apps.quotas.principals import Principal

# Organisation, department, team; below them are tenants.
MOST_LEVELS = 4


def below(path: str) -> list[str]:
    """Return the lookups of an object of organisations that are at `path` or at most so many levels below it."""
    return ["__".join([*["children"] * depth, path]) for depth in range(MOST_LEVELS)]


class OrganisationQuerySet(models.QuerySet["Organisation"]):
    """Organisations, filtered by principal."""

    def visible_to(self, principal: "Principal") -> "OrganisationQuerySet":
        """Return every organisation to an operator, to others those above tenants in which they have a role."""
        if principal.is_operator:
            return self
        above = Q(pk=None)
        for lookup in below("tenants__in"):
            above |= Q(**{lookup: list(principal.roles)})
        return self.filter(pk__in=Organisation.objects.filter(above).order_by().values("pk"))


class Organisation(Row):
    """An organisation, or (with a parent) a part of one: a department, a team."""

    audited = ("organisation", "slug")
    slug = models.CharField(max_length=63, unique=True, validators=[RegexValidator(SLUG)])
    name = models.CharField(max_length=200)
    parent = models.ForeignKey("self", on_delete=models.PROTECT, null=True, blank=True, related_name="children")

    objects = OrganisationQuerySet.as_manager()

    class Meta:
        ordering = ["slug"]
        constraints = checks(organisation_not_its_own_parent=Q(parent=None) | ~Q(parent=F("pk")))

    def __str__(self) -> str:
        return self.slug


class OrganisationQuotaQuerySet(models.QuerySet["OrganisationQuota"]):
    """Quotas of organisations, filtered by principal."""

    def visible_to(self, principal: "Principal") -> "OrganisationQuotaQuerySet":
        """Return the quotas of organisations that the caller may see."""
        if principal.is_operator:
            return self
        return self.filter(organisation__in=Organisation.objects.visible_to(principal).order_by().values("pk"))


class OrganisationQuota(Row):
    """A limit of what all tenants below an organisation hold together, in one pool or (pool null) in all pools."""

    audited = ("organisation-quota", "pk")
    organisation = models.ForeignKey(Organisation, on_delete=models.CASCADE, related_name="quotas")
    pool = models.ForeignKey(Pool, on_delete=models.PROTECT, related_name="+", null=True)
    # One of `Resource`, or a MIG profile's.
    resource = models.CharField(max_length=20)
    hard = models.BigIntegerField(null=True, help_text="Null: unlimited, use is counted only. Zero: none.")
    used = models.BigIntegerField(default=0)
    excess = models.BigIntegerField(default=0, help_text="Held above `hard` when that was lowered.")

    objects = OrganisationQuotaQuerySet.as_manager()

    class Meta:
        ordering = ["pk"]
        constraints = [
            models.UniqueConstraint(
                fields=["organisation", "pool", "resource"], name="organisation_quota_once", nulls_distinct=False
            ),
            *checks(
                organisation_quota_resource_known=Q(resource__regex=RESOURCE),
                organisation_quota_amounts_not_negative=Q(used__gte=0, excess__gte=0),
                organisation_quota_hard_not_negative=Q(hard__isnull=True) | Q(hard__gte=0),
                organisation_quota_never_exceeded=Q(hard__isnull=True) | Q(used__lte=F("hard") + F("excess")),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.organisation}/{self.pool or '*'}/{self.resource}"

    @property
    def profile(self) -> str | None:
        """The MIG profile whose instances it counts; None: it is of another resource."""
        return profile_of(self.resource)

    @property
    def free(self) -> int | None:
        """Amount that can still be charged; None: no bound."""
        return None if self.hard is None else max(0, self.hard - self.used)

    @property
    def percent(self) -> float | None:
        """The used part of `hard`; None if it is no bound."""
        return 100 * self.used / self.hard if self.hard else None

    def covers(self, pool_id: int) -> bool:
        """Return True if charges in this pool count."""
        return self.pool_id is None or self.pool_id == pool_id
