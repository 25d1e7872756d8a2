"""Containers of pods that hold GPUs, and the claims that stand for them in the ledger."""

from typing import TYPE_CHECKING

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import Q

from apps.clusters.models.cluster import Cluster
from apps.nodes.models import Node
from apps.quotas.models.row import Row
from apps.scheduling.models import Claim

if TYPE_CHECKING:
    from apps.quotas.principals import Principal


class PodClaimQuerySet(models.QuerySet["PodClaim"]):
    """Containers, asked with who is asking."""

    def visible_to(self, principal: "Principal") -> "PodClaimQuerySet":
        """Every one to an operator; to others those of their tenants' claims."""
        return self if principal.is_operator else self.filter(claim__tenant__in=principal.roles)

    def live(self) -> "PodClaimQuerySet":
        """Those whose pod is not over."""
        return self.filter(ended_at=None)


class PodClaim(Row):
    """One container of a bound pod that asked for GPUs.

    `claim` is null where it could not be charged or placed in the books, and `problem` says why; the next look at the
    pod tries again.
    """

    cluster = models.ForeignKey(Cluster, on_delete=models.PROTECT, related_name="pods")
    namespace = models.CharField(max_length=63)
    pod = models.CharField(max_length=253)
    pod_uid = models.CharField(max_length=63)
    container = models.CharField(max_length=63)
    # Its place in `spec.containers`, which the annotations count by.
    container_index = models.PositiveSmallIntegerField()
    # As Kubernetes calls the machine; ours is null where no node of ours is that machine.
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
            models.CheckConstraint(
                condition=Q(claim__isnull=False) | ~Q(problem="") | Q(ended_at__isnull=False),
                name="pod_without_claim_says_why",
            ),
        ]
        indexes = [
            models.Index(fields=["cluster", "pod_uid"], condition=Q(ended_at=None), name="pod_live"),
            models.Index(fields=["cluster", "namespace", "-id"], name="pod_of_namespace"),
        ]

    def __str__(self) -> str:
        return f"{self.namespace}/{self.pod}/{self.container}"
