"""/clusters/{name}/namespaces/: bindings of namespaces to the tenants that pay for them."""

from typing import Any

from django.shortcuts import get_object_or_404
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from apps.clusters.models import Cluster, NamespaceBinding
from apps.clusters.services import bindings
from apps.quotas.api.serializers import TenantBySlug
from apps.quotas.api.views import ApiView, ListMixin
from apps.quotas.idempotency import idempotent
from gpucloud.api import etags
from gpucloud.api.filters import Changed
from gpucloud.api.serializers import Strict

LABEL_NAME = r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"


class BindingSerializer(Strict):
    """Namespaces, and the tenant that pays for their pods."""

    id = serializers.IntegerField(source="pk", read_only=True)
    namespace = serializers.RegexField(
        LABEL_NAME, allow_null=True, default=None, help_text="Name of one namespace; give it or a selector."
    )
    selector = serializers.DictField(
        child=serializers.CharField(max_length=63, allow_blank=True),
        allow_null=True,
        default=None,
        help_text="All namespaces with these labels; empty: all. A binding by name wins, then the oldest.",
    )
    tenant = TenantBySlug()
    version = serializers.IntegerField(read_only=True)
    created_at = serializers.DateTimeField(read_only=True)
    updated_at = serializers.DateTimeField(read_only=True)


class BindingChangeSerializer(BindingSerializer):
    """Changeable fields of a binding."""

    namespace = serializers.CharField(read_only=True, allow_null=True)  # type: ignore[assignment]
    selector = serializers.DictField(read_only=True, allow_null=True)


class BindingFilter(Changed):
    """Bindings by namespace."""

    class Meta:
        model = NamespaceBinding
        fields = ["namespace", "updated_since"]


class BindingView(ApiView):
    """Base of the views of bindings."""

    serializer_class: Any = BindingSerializer
    read_scope, write_scope = "nodes:read", "nodes:write"

    def cluster(self) -> Cluster:
        """Return the cluster in the URL if the caller may see it; else 404."""
        return get_object_or_404(Cluster.objects.visible_to(self.principal), name=self.kwargs["name"])

    def get_queryset(self) -> Any:
        """Return this cluster's bindings that are visible to the caller."""
        rows = NamespaceBinding.objects.visible_to(self.principal).select_related("tenant", "cluster")
        return rows if getattr(self, "swagger_fake_view", False) else rows.filter(cluster=self.cluster())


class BindingList(BindingView, ListMixin):
    """A cluster's bindings."""

    filterset_class = BindingFilter

    def get(self, request: Request, name: str) -> Response:
        """List the cluster's bindings of namespaces to tenants."""
        return self.list_page(self.get_queryset())

    @idempotent
    def post(self, request: Request, name: str) -> Response:
        """Bind a namespace, or all with certain labels, to a tenant (operators)."""
        cluster = self.cluster()
        return self.answer(
            bindings.bind(principal=self.principal, cluster=cluster, **self.parse_body(request)), status=201
        )


class BindingDetail(BindingView):
    """One binding."""

    def get_serializer_class(self) -> Any:
        """Return the serializer of the method: the namespaces of a binding never change."""
        return BindingChangeSerializer if self.request.method == "PATCH" else super().get_serializer_class()

    def get(self, request: Request, name: str, pk: int) -> Response:
        """Show a binding."""
        return self.answer(self.find(pk))

    def patch(self, request: Request, name: str, pk: int) -> Response:
        """Charge new pods to another tenant; running pods stay charged as they are (operators)."""
        binding, values = self.find(pk), self.parse_body(request, partial=True)
        versions = etags.if_match(request)
        return self.answer(bindings.change(principal=self.principal, binding=binding, versions=versions, **values))

    @extend_schema(responses={204: None})
    def delete(self, request: Request, name: str, pk: int) -> Response:
        """Remove a binding: new pods are charged to nobody, running pods stay charged (operators)."""
        bindings.unbind(principal=self.principal, binding=self.find(pk), versions=etags.if_match(request))
        return Response(status=204)
