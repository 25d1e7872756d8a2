"""/clusters/: Kubernetes clusters and the containers that hold GPUs there."""

from typing import Any

from django.shortcuts import get_object_or_404
from django.utils.translation import gettext_lazy as _
from django_filters import rest_framework as filters
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from apps.clusters.models import Cluster, ClusterState, Placement, PodClaim
from apps.clusters.services import clusters
from apps.quotas.api.serializers import PoolByName
from apps.quotas.api.views import CHANGES, ApiView, ListMixin
from apps.quotas.idempotency import idempotent
from apps.quotas.models.tenant import SLUG
from gpucloud.api import etags
from gpucloud.api.filters import Changed
from gpucloud.api.serializers import Strict

# NAMESPACE/NAME of a service account.
ACCOUNT = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?/[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"


class ClusterSerializer(Strict):
    """A cluster, without its credentials."""

    uid = serializers.UUIDField(read_only=True)
    name = serializers.RegexField(
        SLUG, help_text=_("Lower-case letters, digits and dashes; 63 at most; never changes.")
    )
    pool = PoolByName(help_text=_("Pool of its nodes' GPUs; its pods are charged there."))
    server = serializers.CharField(read_only=True, help_text="URL of its API server.")
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
    state = serializers.ChoiceField(choices=ClusterState.choices, read_only=True)
    state_reason = serializers.CharField(read_only=True, help_text="Error of the last attempt.")
    kubernetes_version = serializers.CharField(read_only=True)
    synced_at = serializers.DateTimeField(
        read_only=True, allow_null=True, help_text="Time of the last complete list of its objects."
    )
    version = serializers.IntegerField(read_only=True)
    created_at = serializers.DateTimeField(read_only=True)
    updated_at = serializers.DateTimeField(read_only=True)


class ClusterChangeSerializer(ClusterSerializer):
    """Changeable fields of a cluster."""

    name = serializers.CharField(read_only=True)  # type: ignore[assignment]
    pool = serializers.CharField(source="pool.name", read_only=True)  # type: ignore[assignment]
    in_cluster = serializers.BooleanField(read_only=True)


class PodSerializer(Strict):
    """One container of a pod that holds GPUs."""

    namespace = serializers.CharField(read_only=True)
    pod = serializers.CharField(read_only=True)
    pod_uid = serializers.CharField(read_only=True)
    container = serializers.CharField(read_only=True)
    container_index = serializers.IntegerField(read_only=True, help_text="Index in `spec.containers`.")
    node_name = serializers.CharField(read_only=True, help_text="Name of the node in Kubernetes.")
    node = serializers.CharField(
        source="node.name", read_only=True, allow_null=True, default=None, help_text="Name of the node in gpucloud."
    )
    core = serializers.IntegerField(read_only=True, help_text="`tencent.com/vcuda-core`: 100 is a GPU.")
    memory_mib = serializers.IntegerField(read_only=True, help_text="Sum over all its GPUs.")
    gpu_indexes = serializers.ListField(child=serializers.IntegerField(), read_only=True)
    claim = serializers.UUIDField(source="claim.uid", read_only=True, allow_null=True, default=None)
    problem = serializers.CharField(read_only=True, help_text="Reason why there is no claim.")
    ended_at = serializers.DateTimeField(read_only=True, allow_null=True)
    version = serializers.IntegerField(read_only=True)
    created_at = serializers.DateTimeField(read_only=True)
    updated_at = serializers.DateTimeField(read_only=True)


class ClusterFilter(Changed):
    """Clusters by pool and state."""

    pool = filters.CharFilter(field_name="pool__name")

    class Meta:
        model = Cluster
        fields = ["pool", "state", "enabled", "updated_since"]


class PodFilter(Changed):
    """Containers by location."""

    live = filters.BooleanFilter(field_name="ended_at", lookup_expr="isnull")

    class Meta:
        model = PodClaim
        fields = ["namespace", "pod", "pod_uid", "node_name", "live", "updated_since"]


class ClusterView(ApiView):
    """Base of the views of clusters."""

    serializer_class: Any = ClusterSerializer
    lookup_key = "name"
    read_scope, write_scope = "nodes:read", "nodes:write"

    def get_queryset(self) -> Any:
        """Return the rows visible to the caller."""
        return Cluster.objects.visible_to(self.principal).select_related("pool")


class ClusterList(ClusterView, ListMixin):
    """Clusters."""

    operator_methods = CHANGES

    filterset_class = ClusterFilter

    def get(self, request: Request) -> Response:
        """List clusters. Users other than operators see those in which a namespace is bound to their tenant."""
        return self.list_page(self.get_queryset())

    @idempotent
    def post(self, request: Request) -> Response:
        """Connect a cluster (operators)."""
        return self.answer(clusters.connect(principal=self.principal, **self.parse_body(request)), status=201)


class ClusterDetail(ClusterView):
    """One cluster."""

    def get_serializer_class(self) -> Any:
        """Return the serializer of the method: name and pool never change."""
        return ClusterChangeSerializer if self.request.method == "PATCH" else super().get_serializer_class()

    def get(self, request: Request, name: str) -> Response:
        """Show a cluster."""
        return self.answer(self.find(name))

    def patch(self, request: Request, name: str) -> Response:
        """Change a cluster's connection or the placement of its pods (operators)."""
        cluster, values = self.find(name), self.parse_body(request, partial=True)
        versions = etags.if_match(request)
        return self.answer(clusters.change(principal=self.principal, cluster=cluster, versions=versions, **values))

    @extend_schema(responses={204: None})
    def delete(self, request: Request, name: str) -> Response:
        """Remove a cluster whose pods hold no claims (operators)."""
        clusters.remove(principal=self.principal, cluster=self.find(name), versions=etags.if_match(request))
        return Response(status=204)


class PodList(ListMixin):
    """A cluster's containers that hold GPUs."""

    serializer_class = PodSerializer
    filterset_class = PodFilter
    read_scope = "nodes:read"

    def get_queryset(self) -> Any:
        """Return the rows visible to the caller."""
        return PodClaim.objects.visible_to(self.principal).select_related("node", "claim")

    def get(self, request: Request, name: str) -> Response:
        """List containers of pods that hold or held GPUs, newest first."""
        cluster = get_object_or_404(Cluster.objects.visible_to(self.principal), name=name)
        return self.list_page(self.get_queryset().filter(cluster=cluster))
