"""Telemetry rolled up: means over ten seconds, a minute, an hour and a day.

Rows lie by time first, so that what is written together lies together; who reads one GPU names its moments.
"""

import uuid

from django.db import models

# In the place of an assignment: the GPU itself.
WHOLE_GPU = uuid.UUID(int=0)


class Rolled(models.Model):
    """One span of one GPU (`uid` is zero) or of one assignment on it. Partitioned by `at`, the span's beginning."""

    pk = models.CompositePrimaryKey("at", "node_id", "gpu_id", "uid")
    at = models.DateTimeField()
    node_id = models.BigIntegerField()
    gpu_id = models.BigIntegerField()
    uid = models.UUIDField()
    samples = models.IntegerField()
    core = models.FloatField()
    core_most = models.FloatField()
    core_limit = models.FloatField(null=True)
    throttled = models.FloatField(null=True)
    memory = models.BigIntegerField()
    memory_most = models.BigIntegerField()
    memory_limit = models.BigIntegerField(null=True)
    # Of at most the whole GPU, whatever a tenant's page says.
    gpu_time_ms = models.FloatField()
    watts = models.FloatField(null=True)
    celsius_most = models.FloatField(null=True)

    class Meta:
        abstract = True

    def __str__(self) -> str:
        return f"{self.uid} on GPU {self.gpu_id} from {self.at}"


class UsageTens(Rolled):
    """Ten seconds."""


class UsageMinute(Rolled):
    """A minute."""


class UsageHour(Rolled):
    """An hour."""


class UsageDay(Rolled):
    """A day, UTC."""


class FleetMinute(models.Model):
    """A minute of the whole fleet, in percent of its GPUs: a day of it is read without a day of every GPU.

    Used: of the GPUs that were measured. Leased: what was promised of those that were there as the minute was rolled
    up; null where that was later.
    """

    at = models.DateTimeField(primary_key=True)
    gpus = models.IntegerField()
    core_used = models.FloatField()
    memory_used = models.FloatField()
    core_leased = models.FloatField(null=True)
    memory_leased = models.FloatField(null=True)

    def __str__(self) -> str:
        return f"the fleet from {self.at}"


class LateFrames(models.Model):
    """A minute of a node of which a frame came after it was rolled up: to be rolled up again.

    One row for each time that it happened: who rolls up removes what it has read, and no later one.
    """

    node_id = models.BigIntegerField()
    minute = models.DateTimeField()

    def __str__(self) -> str:
        return f"{self.minute} of node {self.node_id}"


class TelemetryMark(models.Model):
    """How far roll-ups are. `closing`: a frame of before is late. `rolled`: all before is rolled up."""

    name = models.CharField(max_length=20, primary_key=True)
    at = models.DateTimeField()

    def __str__(self) -> str:
        return f"{self.name} at {self.at}"
