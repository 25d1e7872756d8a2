"""ResourceClaims of Dynamic Resource Allocation, and their claims."""

from django.db import models
from django.db.models import Q

from apps.clusters.models.cluster import Cluster
from apps.clusters.models.resize import TellState
from apps.quotas.models import Tenant
from apps.quotas.models.row import Owned, Row, checks
from apps.scheduling.models import Claim


class DeviceClaimQuerySet(Owned["DeviceClaim"]):
    """ResourceClaims, filtered by principal."""

    owner = "tenant"

    def live(self) -> "DeviceClaimQuerySet":
        """Return the ResourceClaims that exist, as far as the watch has heard."""
        return self.filter(ended_at=None)


class DeviceClaim(Row):
    """A ResourceClaim of a cluster that asks for shares of GPUs, by its uid there.

    `claim` is null if it could not be charged, and `problem` holds the reason; a problem beside a claim is that what
    was allocated has no room in the ledger. The next pass over the ResourceClaim retries.
    """

    cluster = models.ForeignKey(Cluster, on_delete=models.PROTECT, related_name="device_claims")
    uid = models.CharField(max_length=63)
    namespace = models.CharField(max_length=63)
    name = models.CharField(max_length=253)
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, null=True, related_name="+")
    claim = models.OneToOneField(Claim, on_delete=models.PROTECT, null=True, related_name="device_claim")
    problem = models.CharField(max_length=2000, blank=True, default="")
    problem_since = models.DateTimeField(null=True)
    # The node in Kubernetes whose devices are allocated; empty before that.
    node_name = models.CharField(max_length=253, blank=True, default="")
    # The annotations that were last applied, and the reason of a refusal.
    words = models.JSONField(default=dict)
    refusal = models.CharField(max_length=2000, blank=True, default="")
    # The status that was last written into the ResourceClaim, and for which generation of the claim.
    told = models.CharField(max_length=10, choices=TellState, default=TellState.NOTHING, blank=True)
    told_generation = models.PositiveIntegerField(default=0)
    # False until the watch has seen it: the API server may still have refused what the webhook charged.
    seen = models.BooleanField(default=False)
    ended_at = models.DateTimeField(null=True)

    objects = DeviceClaimQuerySet.as_manager()

    class Meta:
        ordering = ["pk"]
        constraints = [
            models.UniqueConstraint(fields=["cluster", "uid"], name="device_claim_once"),
            *checks(
                device_claim_says_why=Q(claim__isnull=False) | ~Q(problem="") | Q(ended_at__isnull=False),
                device_claim_told_known=Q(told__in=TellState.values),
            ),
        ]
        indexes = [models.Index(fields=["cluster"], condition=Q(ended_at=None), name="device_claim_live")]

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"
