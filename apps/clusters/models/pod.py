"""Containers of pods that hold GPUs, and their claims."""

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import Q

from apps.clusters.models.cluster import Cluster
from apps.nodes.models import Node
from apps.quotas.models.row import Owned, Row, checks
from apps.scheduling.models import Claim


class PodClaimQuerySet(Owned["PodClaim"]):
    """Containers, filtered by principal."""

    owner = "claim__tenant"

    def live(self) -> "PodClaimQuerySet":
        """Return the containers whose pod has not ended."""
        return self.filter(ended_at=None)


class PodClaim(Row):
    """One container of a bound pod that asked for GPUs.

    `claim` is null if it could not be charged or placed, and `problem` holds the reason; the next pass over the pod
    retries.
    """

    cluster = models.ForeignKey(Cluster, on_delete=models.PROTECT, related_name="pods")
    namespace = models.CharField(max_length=63)
    pod = models.CharField(max_length=253)
    pod_uid = models.CharField(max_length=63)
    container = models.CharField(max_length=63)
    # Index in `spec.containers`, and after these of the sidecars: the annotations use it.
    container_index = models.PositiveSmallIntegerField()
    # Name in Kubernetes; `node` is null if no enrolled node is that machine.
    node_name = models.CharField(max_length=253)
    node = models.ForeignKey(Node, on_delete=models.SET_NULL, null=True, related_name="pods")
    core = models.PositiveIntegerField()
    memory_mib = models.PositiveBigIntegerField()
    gpu_indexes = ArrayField(models.PositiveIntegerField())
    claim = models.OneToOneField(Claim, on_delete=models.PROTECT, null=True, related_name="container")
    problem = models.CharField(max_length=2000, blank=True, default="")
    ended_at = models.DateTimeField(null=True)

    objects = PodClaimQuerySet.as_manager()

    class Meta:
        ordering = ["pk"]
        constraints = [
            models.UniqueConstraint(fields=["cluster", "pod_uid", "container"], name="pod_container_once"),
            *checks(pod_without_claim_says_why=Q(claim__isnull=False) | ~Q(problem="") | Q(ended_at__isnull=False)),
        ]
        indexes = [
            models.Index(fields=["cluster", "pod_uid"], condition=Q(ended_at=None), name="pod_live"),
            models.Index(fields=["cluster", "namespace", "-id"], name="pod_of_namespace"),
        ]

    def __str__(self) -> str:
        return f"{self.namespace}/{self.pod}/{self.container}"
