"""Rolled-up telemetry: means over ten seconds, a minute, an hour and a day.

Rows are stored by time first, so rows that are written together lie together; a reader of one GPU names its moments.
"""

import uuid

from django.db import models

# In the place of an assignment's uid: the GPU itself.
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
    # At most the whole GPU's, whatever a tenant's usage page contains.
    gpu_time_ms = models.FloatField()
    watts = models.FloatField(null=True)
    celsius_most = models.FloatField(null=True)
    # Null unless it borrows memory; of a GPU, what its assignments borrow of it.
    borrowed = models.BigIntegerField(null=True)
    borrowed_most = models.BigIntegerField(null=True)
    memory_out = models.BigIntegerField(null=True)
    memory_out_most = models.BigIntegerField(null=True)
    # Bytes a second, percent.
    moved = models.FloatField(null=True)
    stood = models.FloatField(null=True)

    class Meta:
        abstract = True

    def __str__(self) -> str:
        return f"{self.uid} on GPU {self.gpu_id} from {self.at}"


class UsageTens(Rolled):
    """Means over ten seconds."""


class UsageMinute(Rolled):
    """Means over a minute."""


class UsageHour(Rolled):
    """Means over an hour."""


class UsageDay(Rolled):
    """Means over a day, UTC."""


class FleetMinute(models.Model):
    """A minute of the whole fleet in percent of its GPUs, so that a day is read without every GPU's rows.

    Used: of the measured GPUs. Leased: the allocations of the GPUs present when the minute was rolled up; null if it
    was rolled up later.
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
    """A minute of a node that must be rolled up again because a frame came late.

    One row for each late batch: a roll-up removes the rows that it has read, and no later ones.
    """

    node_id = models.BigIntegerField()
    minute = models.DateTimeField()

    def __str__(self) -> str:
        return f"{self.minute} of node {self.node_id}"


class TelemetryMark(models.Model):
    """Progress of the roll-ups. `closing`: an older frame is late. `rolled`: everything before is rolled up."""

    name = models.CharField(max_length=20, primary_key=True)
    at = models.DateTimeField()

    def __str__(self) -> str:
        return f"{self.name} at {self.at}"
