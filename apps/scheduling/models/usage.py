"""Allocated and used GPU time by span: counted from the ledger and from measurements, so that reports are sums."""

from django.db import models
from django.db.models import Q

from apps.quotas.models import Pool, Tenant
from apps.quotas.models.row import checks


class UsedHour(models.Model):
    """The GPU time that a tenant's programs used within one hour, on GPUs of one model in one pool."""

    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="used_hours")
    pool = models.ForeignKey(Pool, on_delete=models.PROTECT, related_name="+")
    gpu_model = models.CharField(max_length=200)
    hour = models.DateTimeField(help_text="Its beginning.")
    gpu_time_ms = models.BigIntegerField()

    class Meta:
        ordering = ["pk"]
        constraints = [
            models.UniqueConstraint(fields=["tenant", "pool", "gpu_model", "hour"], name="used_hour_once"),
            *checks(used_hour_not_negative=Q(gpu_time_ms__gte=0)),
        ]
        indexes = [models.Index(fields=["hour"], name="used_hour_by_time")]

    def __str__(self) -> str:
        return f"{self.tenant} on {self.gpu_model} in {self.hour:%Y-%m-%d %H}h"


class PastUse(models.Model):
    """The amounts of a pool that a tenant held on average, older times counting less (`core.fair_share`).

    Of the moment of the pool's mark. Only `apps.accounting.services.past_use` writes these rows.
    """

    pool = models.ForeignKey(Pool, on_delete=models.CASCADE, related_name="+", db_index=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="+")
    core_percent = models.FloatField()
    memory_mib = models.FloatField()

    class Meta:
        ordering = ["pk"]
        constraints = [
            models.UniqueConstraint(fields=["pool", "tenant"], name="past_use_once"),
            *checks(past_use_not_negative=Q(core_percent__gte=0, memory_mib__gte=0)),
        ]

    def __str__(self) -> str:
        return f"{self.tenant} in {self.pool}"


class PastUseMark(models.Model):
    """The moment up to which a pool's past use is counted, and how it was."""

    pool = models.OneToOneField(Pool, on_delete=models.CASCADE, related_name="past_use_mark")
    half_life_seconds = models.PositiveIntegerField()
    at = models.DateTimeField()
    counted_at = models.DateTimeField(help_text="The moment of the last count of all the past.")

    def __str__(self) -> str:
        return f"{self.pool} up to {self.at:%Y-%m-%d %H:%M}"


class Allocated(models.Model):
    """The GPU time that a claim (or a reservation, beside its claims) was allocated and used within one span.

    In milliseconds of whole GPUs. `uid`, without a foreign key: the claim's or the reservation's.
    """

    pk = models.CompositePrimaryKey("at", "uid")
    at = models.DateTimeField(help_text="The span's beginning.")
    uid = models.UUIDField()
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="+", db_index=False)
    pool = models.ForeignKey(Pool, on_delete=models.PROTECT, related_name="+", db_index=False)
    owner = models.CharField(max_length=200)
    reserved_ms = models.BigIntegerField()
    used_ms = models.BigIntegerField()

    class Meta:
        abstract = True

    def __str__(self) -> str:
        return f"{self.uid} from {self.at:%Y-%m-%d %H}h"


class AllocatedHour(Allocated):
    """Hours of the last two days."""

    class Meta:
        indexes = [models.Index(fields=["tenant", "at"], name="allocated_hour_of_tenant")]


class AllocatedDay(Allocated):
    """Days, UTC."""

    class Meta:
        indexes = [models.Index(fields=["tenant", "at"], name="allocated_day_of_tenant")]
