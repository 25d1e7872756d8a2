"""/clusters/{name}/namespaces/: bindings of namespaces to the tenants that pay for them."""

from typing import Any

from django.shortcuts import get_object_or_404
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from apps.clusters.models import Cluster, NamespaceBinding
from apps.clusters.services import bindings
from apps.quotas.api.methods import changes, lists, removes, shows
from apps.quotas.api.serializers import TenantBySlug
from apps.quotas.api.views import ApiView, ListMixin
from apps.quotas.idempotency import idempotent
from gpucloud.api import shown
from gpucloud.api.filters import filters_of
from gpucloud.api.serializers import Strict
from gpucloud.api.shown import Columns

LABEL_NAME = r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"


class BindingSerializer(Strict):
    """Namespaces, and the tenant that pays for their pods."""

    id = shown.integer(source="pk")
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
    changed = Columns(NamespaceBinding, "version created_at updated_at")


class BindingChangeSerializer(BindingSerializer):
    """Changeable fields of a binding."""

    namespace = shown.text(null=True)
    selector = serializers.DictField(read_only=True, allow_null=True)


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

    filterset_class = filters_of(NamespaceBinding, "namespace")
    get = lists("List the cluster's bindings of namespaces to tenants.")

    @idempotent
    def post(self, request: Request, name: str) -> Response:
        """Bind a namespace, or all with certain labels, to a tenant (operators)."""
        cluster = self.cluster()
        return self.answer(
            bindings.bind(principal=self.principal, cluster=cluster, **self.parse_body(request)), status=201
        )


class BindingDetail(BindingView):
    """One binding."""

    serializer_classes = {"PATCH": BindingChangeSerializer}

    get = shows("Show a binding.")
    patch = changes(
        bindings.change,
        "binding",
        "Charge new pods to another tenant; running pods stay charged as they are (operators).",
    )
    delete = removes(
        bindings.unbind,
        "binding",
        "Remove a binding: new pods are charged to nobody, running pods stay charged (operators).",
    )
