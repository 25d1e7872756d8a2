"""Kubernetes clusters: connection, pool and placement of pods."""

import uuid

from django.core.validators import RegexValidator
from django.db import models
from django.db.models import Q

from apps.quotas.models import Pool
from apps.quotas.models.row import Row, checks
from apps.quotas.models.tenant import SLUG
from apps.quotas.principals import Principal


class ClusterState(models.TextChoices):
    """State of the connection, as the watch found it."""

    WAITING = "waiting"
    CONNECTED = "connected"
    UNREACHABLE = "unreachable"


class Placement(models.TextChoices):
    """Rules by which the extender chooses GPUs for this cluster's pods."""

    GPU_ADMISSION = "gpu-admission"
    GPUCLOUD = "gpucloud"


class ClusterQuerySet(models.QuerySet["Cluster"]):
    """Clusters, filtered by principal."""

    def visible_to(self, principal: Principal) -> "ClusterQuerySet":
        """Return every cluster to an operator, to others those in which a namespace is bound to their tenant."""
        if principal.is_operator:
            return self
        return self.filter(bindings__tenant__in=principal.roles).distinct()


class Cluster(Row):
    """One API server. Its credentials are sealed, or those of this process's pod."""

    audited = ("cluster", "name")
    uid = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    name = models.CharField(max_length=63, unique=True, validators=[RegexValidator(SLUG)])
    # The pool of its nodes' GPUs; pods are charged there.
    pool = models.ForeignKey(Pool, on_delete=models.PROTECT, related_name="clusters")
    # URL of its API from the kubeconfig; empty for in_cluster.
    server = models.CharField(max_length=2000, blank=True, default="")
    in_cluster = models.BooleanField(default=False)
    # See `services.sealing`.
    sealed_kubeconfig = models.TextField(null=True)
    enabled = models.BooleanField(default=True)
    placement = models.CharField(max_length=20, choices=Placement, default=Placement.GPU_ADMISSION)
    # Answer exactly as gpu-admission does, even if that blocks a pod for ever.
    strict = models.BooleanField(default=False)
    # Write tenants' quotas into their namespaces.
    sync_quotas = models.BooleanField(default=False)
    # `NAMESPACE/NAME` of the service account whose pods join as agents of their nodes; empty: none do.
    agent_account = models.CharField(max_length=127, blank=True, default="", db_default="")
    # Written by the watch, without a new version.
    state = models.CharField(max_length=12, choices=ClusterState, default=ClusterState.WAITING)
    state_reason = models.CharField(max_length=2000, blank=True, default="")
    kubernetes_version = models.CharField(max_length=63, blank=True, default="")
    synced_at = models.DateTimeField(null=True)

    objects = ClusterQuerySet.as_manager()

    class Meta:
        ordering = ["pk"]
        constraints = checks(
            cluster_state_known=Q(state__in=ClusterState.values),
            cluster_placement_known=Q(placement__in=Placement.values),
            cluster_reached_in_one_way=(
                Q(in_cluster=True, sealed_kubeconfig__isnull=True)
                | Q(in_cluster=False, sealed_kubeconfig__isnull=False)
            ),
        )

    @property
    def principal(self) -> Principal:
        """Principal that acts for the cluster's pods."""
        return Principal(name=f"cluster:{self.name}", is_operator=True)

    def __str__(self) -> str:
        return self.name
