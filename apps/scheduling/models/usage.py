"""Measured use by the hour: all that is stored of samples after a day."""

from django.db import models
from django.db.models import Q

from apps.quotas.models import Pool, Tenant


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
            models.CheckConstraint(condition=Q(gpu_time_ms__gte=0), name="used_hour_not_negative"),
        ]
        indexes = [models.Index(fields=["hour"], name="used_hour_by_time")]

    def __str__(self) -> str:
        return f"{self.tenant} on {self.gpu_model} in {self.hour:%Y-%m-%d %H}h"
