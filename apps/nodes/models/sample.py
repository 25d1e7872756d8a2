"""Utilisation samples: what a GPU or an assignment did in one second."""

from django.db import models

from apps.nodes.models.gpu import Gpu


class Sample(models.Model):
    """One second of one GPU (`assignment_uid` null, by NVML) or of one assignment (by libvcuda's account).

    Holds the assignment's uid, not a foreign key: assignments live in a higher app. Telemetry may be lossy.
    """

    gpu = models.ForeignKey(Gpu, on_delete=models.CASCADE, related_name="samples", null=True)
    assignment_uid = models.UUIDField(null=True)
    at = models.DateTimeField()
    core_percent = models.FloatField()
    core_limit_percent = models.PositiveSmallIntegerField(null=True)
    throttled_percent = models.FloatField(null=True)
    memory_bytes = models.BigIntegerField()
    memory_limit_bytes = models.BigIntegerField(null=True)
    processes = models.PositiveIntegerField(null=True)
    power_watts = models.FloatField(null=True)
    temperature_celsius = models.FloatField(null=True)

    class Meta:
        # A frame that is sent again after a lost acknowledgement stores nothing twice.
        constraints = [
            models.UniqueConstraint(
                fields=["assignment_uid", "at"], condition=models.Q(gpu=None), name="sample_of_assignment"
            ),
            models.UniqueConstraint(fields=["gpu", "at"], condition=~models.Q(gpu=None), name="sample_of_gpu"),
        ]
        indexes = [models.Index(fields=["at"], name="sample_by_time")]

    def __str__(self) -> str:
        return f"{self.gpu_id or self.assignment_uid} at {self.at}"
