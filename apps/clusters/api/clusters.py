"""/clusters/: Kubernetes clusters and the containers that hold GPUs there."""

from typing import Any

from django.shortcuts import get_object_or_404
from django.utils.translation import gettext_lazy as _
from django_filters import rest_framework as filters
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from apps.clusters.models import Cluster, ClusterState, DeviceClaim, Placement, PodClaim
from apps.clusters.services import clusters
from apps.quotas.api.methods import changes, creates, lists, removes, shows
from apps.quotas.api.serializers import PoolByName
from apps.quotas.api.views import CHANGES, ApiView, ListMixin
from apps.quotas.models.tenant import SLUG
from gpucloud.api import shown
from gpucloud.api.filters import filters_of
from gpucloud.api.serializers import Strict
from gpucloud.api.shown import Columns

# NAMESPACE/NAME of a service account.
ACCOUNT = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?/[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"


class ClusterSerializer(Strict):
    """A cluster, without its credentials."""

    uid = shown.uid()
    name = serializers.RegexField(
        SLUG, help_text=_("Lower-case letters, digits and dashes; 63 at most; never changes.")
    )
    pool = PoolByName(help_text=_("Pool of its nodes' GPUs; its pods are charged there."))
    server = shown.text("URL of its API server.")
    in_cluster = serializers.BooleanField(
        default=False, help_text=_("gpucloud runs in this cluster and uses its pod's service account.")
    )
    kubeconfig = serializers.CharField(
        write_only=True,
        allow_null=True,
        default=None,
        max_length=100_000,
        help_text=_("Output of `kubectl config view --minify --flatten --raw`; stored encrypted and never shown."),
    )
    enabled = serializers.BooleanField(
        default=True, help_text=_("False: the cluster is not watched, and its claims stay.")
    )
    placement = serializers.ChoiceField(
        choices=Placement.choices,
        default=Placement.GPU_ADMISSION,
        help_text=_("Rules of the extender: exactly gpu-admission's, or the pool's placement policy."),
    )
    strict = serializers.BooleanField(
        default=False, help_text=_("Answer exactly as gpu-admission does, even if that blocks a pod for ever.")
    )
    sync_quotas = serializers.BooleanField(
        default=False, help_text=_("Write tenants' quotas into their namespaces as ResourceQuotas.")
    )
    agent_account = serializers.RegexField(
        ACCOUNT,
        max_length=127,
        default="",
        allow_blank=True,
        help_text=_(
            "`NAMESPACE/NAME` of the service account whose pods join as agents of their nodes; empty: none do."
        ),
    )
    state = shown.choice(ClusterState.choices)
    state_reason = shown.text("Error of the last attempt.")
    kubernetes_version = shown.text()
    synced_at = shown.time("Time at which the cluster was last heard.", null=True)
    changed = Columns(Cluster, "version created_at updated_at")


class ClusterChangeSerializer(ClusterSerializer):
    """Changeable fields of a cluster."""

    name = shown.text()
    pool = shown.text(source="pool.name")
    in_cluster = shown.flag()


class PodSerializer(Strict):
    """One container of a pod that holds GPUs."""

    columns_1 = Columns(PodClaim, "namespace pod pod_uid container")
    container_index = shown.integer("Index in `spec.containers`; sidecars follow these.")
    node_name = shown.text("Name of the node in Kubernetes.")
    node = shown.text("Name of the node in gpucloud.", null=True, source="node.name", default=None)
    core = shown.integer("`tencent.com/vcuda-core`: 100 is a GPU.")
    memory_mib = shown.integer("Sum over all its GPUs.")
    gpu_indexes = serializers.ListField(child=serializers.IntegerField(), read_only=True)
    claim = shown.uid(null=True, source="claim.uid", default=None)
    problem = shown.text("Reason why there is no claim.")
    columns_2 = Columns(PodClaim, "ended_at version created_at updated_at")


class DeviceClaimSerializer(Strict):
    """One ResourceClaim that asks for shares of GPUs."""

    columns_1 = Columns(DeviceClaim, "namespace name")
    uid = shown.text("Its uid in Kubernetes.")
    node_name = shown.text("Name of the node in Kubernetes; empty before it is allocated.")
    claim = shown.uid(null=True, source="claim.uid", default=None)
    problem = shown.text("Reason why it has no claim, or no place on its GPU.")
    refusal = shown.text("Reason why its last resize by annotation was refused; empty if it was not.")
    columns_2 = Columns(DeviceClaim, "ended_at version created_at updated_at")


class ClusterView(ApiView):
    """Base of the views of clusters."""

    serializer_class: Any = ClusterSerializer
    lookup_key = "name"
    read_scope, write_scope = "nodes:read", "nodes:write"
    queryset = Cluster.objects.select_related("pool")


class ClusterList(ClusterView, ListMixin):
    """Clusters."""

    operator_methods = CHANGES

    filterset_class = filters_of(Cluster, "state", "enabled", pool="pool__name")
    get = lists("List clusters. Users other than operators see those in which a namespace is bound to their tenant.")
    post = creates(clusters.connect, "Connect a cluster (operators).")


class ClusterDetail(ClusterView):
    """One cluster."""

    serializer_classes = {"PATCH": ClusterChangeSerializer}

    get = shows("Show a cluster.")
    patch = changes(
        clusters.change, "cluster", "Change a cluster's connection or the placement of its pods (operators)."
    )
    delete = removes(clusters.remove, "cluster", "Remove a cluster whose pods hold no claims (operators).")


class PodList(ListMixin):
    """A cluster's containers that hold GPUs."""

    serializer_class = PodSerializer
    filterset_class = filters_of(
        PodClaim,
        "namespace",
        "pod",
        "pod_uid",
        "node_name",
        live=filters.BooleanFilter(field_name="ended_at", lookup_expr="isnull"),
    )
    read_scope = "nodes:read"
    queryset = PodClaim.objects.select_related("node", "claim")

    def get(self, request: Request, name: str) -> Response:
        """List containers of pods that hold or held GPUs, newest first."""
        cluster = get_object_or_404(Cluster.objects.visible_to(self.principal), name=name)
        return self.list_page(self.get_queryset().filter(cluster=cluster))


class DeviceClaimList(ListMixin):
    """A cluster's ResourceClaims."""

    serializer_class = DeviceClaimSerializer
    filterset_class = filters_of(
        DeviceClaim,
        "namespace",
        "name",
        "uid",
        "node_name",
        live=filters.BooleanFilter(field_name="ended_at", lookup_expr="isnull"),
    )
    read_scope = "nodes:read"
    queryset = DeviceClaim.objects.select_related("claim")

    def get(self, request: Request, name: str) -> Response:
        """List ResourceClaims of Dynamic Resource Allocation that ask for shares of GPUs, newest first."""
        cluster = get_object_or_404(Cluster.objects.visible_to(self.principal), name=name)
        return self.list_page(self.get_queryset().filter(cluster=cluster))
