"""GPU use of pods without a claim."""

from django.db import models

from apps.clusters.models.cluster import Cluster
from apps.nodes.models import Gpu


class PodHold(models.Model):
    """One pod's part of one GPU: promised by the extender and not bound yet, or bound and not recorded.

    The GPU holds the sum (`core_outside`), where placement reads it; see `services.outside`.
    """

    cluster = models.ForeignKey(Cluster, on_delete=models.PROTECT, related_name="holds")
    pod_uid = models.CharField(max_length=63)
    gpu = models.ForeignKey(Gpu, on_delete=models.CASCADE, related_name="pod_holds")
    core = models.PositiveIntegerField()
    memory_mib = models.PositiveBigIntegerField()
    since = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["pk"]
        constraints = [
            models.UniqueConstraint(fields=["cluster", "pod_uid", "gpu"], name="pod_hold_once_per_gpu"),
        ]

    def __str__(self) -> str:
        return f"{self.pod_uid} on {self.gpu}"
