"""Raw measurements by the second: a row for each frame of a node, and a view with a row for each measurement.

A frame's values are arrays with an element for each GPU or assignment (`docs/decisions/0025-frames.md` explains why).
"""

from typing import Any

from django.contrib.postgres.fields import ArrayField
from django.db import models

from apps.nodes.models.gpu import Gpu


def _list(field: "models.Field[Any, Any]") -> Any:
    return ArrayField(field, default=list)


class UsageFrame(models.Model):
    """One frame of one node. In the database it is partitioned by `at`, an hour each; SQL creates the tables.

    It has keys of nodes, GPUs and assignments without foreign keys: a partition is dropped as a whole.
    """

    pk = models.CompositePrimaryKey("node_id", "at", "seq")
    node_id = models.BigIntegerField()
    at = models.DateTimeField()
    # The agent's own number: a repeated frame is the same row.
    seq = models.BigIntegerField()
    gpu_ids = _list(models.BigIntegerField())
    gpu_core = _list(models.FloatField())
    gpu_memory = _list(models.BigIntegerField())
    gpu_watts = _list(models.FloatField(null=True))
    gpu_celsius = _list(models.FloatField(null=True))
    gpu_sm_mhz = _list(models.IntegerField(null=True))
    gpu_memory_mhz = _list(models.IntegerField(null=True))
    uids = _list(models.UUIDField())
    # The GPU of each assignment.
    on_gpus = _list(models.BigIntegerField(null=True))
    core = _list(models.FloatField())
    core_limit = _list(models.SmallIntegerField(null=True))
    throttled = _list(models.FloatField(null=True))
    memory = _list(models.BigIntegerField())
    memory_limit = _list(models.BigIntegerField(null=True))
    processes = _list(models.IntegerField(null=True))
    gpu_time_ms = _list(models.FloatField(null=True))
    launches = _list(models.FloatField(null=True))
    # Null where nothing of the node borrows memory. Of a GPU: what its assignments borrow of it.
    gpu_borrowed = ArrayField(models.BigIntegerField(null=True), null=True)
    borrowed = ArrayField(models.BigIntegerField(null=True), null=True)
    memory_out = ArrayField(models.BigIntegerField(null=True), null=True)
    # Bytes a second, percent.
    moved = ArrayField(models.FloatField(null=True), null=True)
    stood = ArrayField(models.FloatField(null=True), null=True)

    class Meta:
        # `migrations/0006_usage_frames.py` creates the table.
        db_table = "nodes_usageframe"

    def __str__(self) -> str:
        return f"frame {self.seq} of node {self.node_id} at {self.at}"


class Sample(models.Model):
    """One second of one GPU (`assignment_uid` null, by NVML) or of one assignment (by libvcuda's account).

    A view: it reads every frame of the nodes and times in the query, so name the nodes and a window. It has the
    assignment's uid instead of a foreign key: assignments live in a higher app. Telemetry may be lossy.
    """

    pk = models.CompositePrimaryKey("node_id", "at", "seq", "place")
    node_id = models.BigIntegerField()
    seq = models.BigIntegerField()
    place = models.IntegerField()
    gpu = models.ForeignKey(Gpu, on_delete=models.DO_NOTHING, related_name="samples", null=True)
    assignment_uid = models.UUIDField(null=True)
    # The GPU of the assignment.
    on_gpu_id = models.BigIntegerField(null=True)
    at = models.DateTimeField()
    core_percent = models.FloatField()
    core_limit_percent = models.PositiveSmallIntegerField(null=True)
    throttled_percent = models.FloatField(null=True)
    memory_bytes = models.BigIntegerField()
    memory_limit_bytes = models.BigIntegerField(null=True)
    processes = models.PositiveIntegerField(null=True)
    gpu_time_ms = models.FloatField(null=True)
    power_watts = models.FloatField(null=True)
    temperature_celsius = models.FloatField(null=True)
    sm_clock_mhz = models.IntegerField(null=True)
    memory_clock_mhz = models.IntegerField(null=True)
    launches_per_second = models.FloatField(null=True)
    # Null unless it borrows memory; of a GPU, what its assignments borrow of it.
    borrowed_bytes = models.BigIntegerField(null=True)
    memory_out_bytes = models.BigIntegerField(null=True)
    moved_bytes_per_second = models.FloatField(null=True)
    stood_percent = models.FloatField(null=True)

    class Meta:
        managed = False
        db_table = "nodes_sample"

    def __str__(self) -> str:
        return f"{self.gpu_id or self.assignment_uid} at {self.at}"
