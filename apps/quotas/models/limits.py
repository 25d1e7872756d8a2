"""Limits inside a tenant: bounds of one claim's fields and of one member's holdings."""

from django.db import models
from django.db.models import F, Q

from apps.quotas.models.pool import Pool
from apps.quotas.models.resource import RESOURCE
from apps.quotas.models.row import Owned, Row, checks
from apps.quotas.models.tenant import Tenant, User


class ClaimField(models.TextChoices):
    """Fields of a claim that can be limited."""

    CORE_REQUEST = "core_request"
    CORE_LIMIT = "core_limit"
    MEMORY_MIB = "memory_mib"
    GPU_COUNT = "gpu_count"
    TIME_LIMIT_SECONDS = "time_limit_seconds"


# Upper bounds of any claim's fields. Defaults are applied after the request's validation, so they are checked too.
MOST: dict[str, int] = {
    ClaimField.CORE_REQUEST: 100,
    ClaimField.CORE_LIMIT: 100,
    # 16 TiB, for pools without a GPU as yet; in others the largest GPU decides.
    ClaimField.MEMORY_MIB: 16 * 1024 * 1024,
    ClaimField.GPU_COUNT: 64,
    ClaimField.TIME_LIMIT_SECONDS: 366 * 86400,
}


class LimitRangeQuerySet(Owned["LimitRange"]):
    """Limit ranges, filtered by principal."""


class LimitRange(Row):
    """Bounds of one field of a tenant's claims, in one pool or (pool null) in every pool."""

    audited = ("limit-range", "pk")
    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="limit_ranges")
    pool = models.ForeignKey(Pool, on_delete=models.PROTECT, related_name="+", null=True)
    field = models.CharField(max_length=20, choices=ClaimField)
    minimum = models.BigIntegerField(null=True)
    maximum = models.BigIntegerField(null=True)
    default = models.BigIntegerField(null=True)

    objects = LimitRangeQuerySet.as_manager()

    class Meta:
        ordering = ["pk"]
        constraints = [
            models.UniqueConstraint(fields=["tenant", "pool", "field"], name="limit_range_once", nulls_distinct=False),
            *checks(
                limit_range_field_known=Q(field__in=ClaimField.values),
                limit_range_in_order=(
                    (Q(minimum__isnull=True) | Q(minimum__gte=1))
                    & (Q(maximum__isnull=True) | Q(maximum__gte=1))
                    & (Q(minimum__isnull=True) | Q(maximum__isnull=True) | Q(minimum__lte=F("maximum")))
                    & (Q(minimum__isnull=True) | Q(default__isnull=True) | Q(minimum__lte=F("default")))
                    & (Q(default__isnull=True) | Q(maximum__isnull=True) | Q(default__lte=F("maximum")))
                ),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.tenant}/{self.pool or '*'}/{self.field}"


class MemberLimitQuerySet(Owned["MemberLimit"]):
    """Member limits, filtered by principal."""


class MemberLimit(Row):
    """Limit of one member for one resource, over all pools; `user` null: every member without a row."""

    audited = ("member-limit", "pk")
    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="member_limits")
    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="+", null=True)
    resource = models.CharField(max_length=20)
    hard = models.BigIntegerField(null=True, help_text="Null: unlimited. Zero: none.")

    objects = MemberLimitQuerySet.as_manager()

    class Meta:
        ordering = ["pk"]
        constraints = [
            models.UniqueConstraint(
                fields=["tenant", "user", "resource"], name="member_limit_once", nulls_distinct=False
            ),
            *checks(
                member_limit_resource_known=Q(resource__regex=RESOURCE),
                member_limit_hard_not_negative=Q(hard__isnull=True) | Q(hard__gte=0),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.tenant}/{self.user or '*'}/{self.resource}"
