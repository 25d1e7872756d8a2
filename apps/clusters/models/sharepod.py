"""SharePods, and their claims."""

from django.db import models

from apps.clusters.models.cluster import Cluster
from apps.quotas.models.row import Owned, Row
from apps.scheduling.models import Claim


class SharePodQuerySet(Owned["SharePod"]):
    """SharePods, filtered by principal."""

    owner = "claim__tenant"


class SharePod(Row):
    """A SharePod of a cluster that asked for a share, by its uid there.

    The claim is created before the pod and determines its location. `gpu_id` names one GPU: SharePods with the same
    value share it.
    """

    cluster = models.ForeignKey(Cluster, on_delete=models.CASCADE, related_name="sharepods")
    uid = models.CharField(max_length=63)
    namespace = models.CharField(max_length=63)
    name = models.CharField(max_length=253)
    gpu_id = models.CharField(max_length=63, blank=True, default="")
    claim = models.OneToOneField(Claim, on_delete=models.PROTECT, related_name="sharepod")
    ended_at = models.DateTimeField(null=True)

    objects = SharePodQuerySet.as_manager()

    class Meta:
        ordering = ["pk"]
        constraints = [models.UniqueConstraint(fields=["cluster", "uid"], name="sharepod_once")]

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"
