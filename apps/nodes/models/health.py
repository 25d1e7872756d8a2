"""The latest health readings of each GPU, as its agent reports them every 30 seconds."""

from datetime import timedelta
from typing import Any

from django.db import models
from django.utils import timezone

from apps.nodes.models.gpu import Gpu
from apps.quotas.principals import Principal

# Three reports that did not come: the readings no longer say how the GPU is.
STALE = timedelta(seconds=100)


class GpuHealth(models.Model):
    """The last report of one GPU. A null reading is one that its card or driver does not have.

    A table of its own: each write of a GPU's row wakes the scheduler and changes the row's version.
    """

    gpu = models.OneToOneField(Gpu, on_delete=models.CASCADE, primary_key=True, related_name="health")
    # By this server's clock.
    reported_at = models.DateTimeField()
    temperature_celsius = models.FloatField(null=True)
    # Memory errors since the driver was loaded.
    ecc_corrected = models.BigIntegerField(null=True)
    ecc_uncorrected = models.BigIntegerField(null=True)
    # By the node's clock. Kept when the agent restarts and does not know it any more.
    last_xid = models.PositiveIntegerField(null=True)
    last_xid_at = models.DateTimeField(null=True)
    # By the agent's table, in English; `program`, `time` or `reset`. Empty: an agent that does not say.
    last_xid_meaning = models.CharField(max_length=200, default="", blank=True)
    last_xid_cure = models.CharField(max_length=200, default="", blank=True)
    # Means over the 30 seconds before the report, by NVML's performance counters (GPM).
    sm_active_percent = models.FloatField(null=True)
    tensor_active_percent = models.FloatField(null=True)
    dram_active_percent = models.FloatField(null=True)
    # {"pid", "command", "memory_mib", "claim", "tenant"} each: `claim` is the uid of one on the GPU's node, or null;
    # `tenant` is the key of its tenant.
    processes = models.JSONField(default=list)

    class Meta:
        db_table = "nodes_gpuhealth"

    def __str__(self) -> str:
        return f"health of GPU {self.gpu_id} at {self.reported_at}"

    @property
    def is_stale(self) -> bool:
        """True if newer reports are missing."""
        return timezone.now() - self.reported_at > STALE

    def processes_for(self, principal: Principal) -> list[dict[str, Any]]:
        """Return every process to an operator; to others, those of their tenants' claims."""
        if principal.is_operator:
            return list(self.processes)
        return [one for one in self.processes if one["tenant"] in principal.roles]
