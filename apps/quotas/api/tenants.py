"""/tenants/, /tenants/{slug}/members/, /pools/."""

from typing import Any

from django.shortcuts import get_object_or_404
from django_filters import rest_framework as filters
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from apps.quotas.api import pool_serializers, serializers
from apps.quotas.api.methods import changes, creates, lists, removes, shows
from apps.quotas.api.views import CHANGES, ApiView, ListMixin
from apps.quotas.idempotency import idempotent
from apps.quotas.models import Membership, Pool, Tenant
from apps.quotas.services import tenants
from gpucloud.api.filters import filters_of


class TenantList(ListMixin):
    """Tenants."""

    serializer_class = serializers.TenantSerializer
    filterset_class = filters_of(Tenant, "slug", "cohort", organisation="organisation__slug")
    read_scope, write_scope = "tenants:read", "tenants:write"
    operator_methods = CHANGES
    queryset = Tenant.objects.select_related("organisation")

    get = lists("List tenants.")

    @idempotent
    def post(self, request: Request) -> Response:
        """Create a tenant. It may hold nothing until it has quotas."""
        values = self.parse_body(request)
        values.setdefault("name", values["slug"])
        return self.answer(tenants.create_tenant(principal=self.principal, **values), status=201)


class TenantDetail(ApiView):
    """One tenant."""

    serializer_class = serializers.TenantChangeSerializer
    lookup_key = "slug"
    read_scope, write_scope = "tenants:read", "tenants:write"
    queryset = Tenant.objects.select_related("organisation")

    get = shows("Show a tenant.")
    patch = changes(tenants.change_tenant, "tenant", "Change name, weight, cohort or organisation.")
    delete = removes(tenants.delete_tenant, "tenant", "Remove a tenant that never had a quota.")


class MemberList(ListMixin):
    """Members of a tenant."""

    serializer_class = serializers.MemberSerializer
    filterset_class = filters_of(Membership, "role", base=filters.FilterSet, username="user__username")
    read_scope, write_scope = "tenants:read", "tenants:write"

    def get_queryset(self) -> Any:
        """Return the members of the tenant in the URL."""
        return Membership.objects.filter(tenant__slug=self.kwargs.get("slug")).select_related("user", "tenant")

    def get(self, request: Request, slug: str) -> Response:
        """List a tenant's members."""
        get_object_or_404(Tenant.objects.visible_to(self.principal), slug=slug)
        return self.list_page(self.get_queryset())

    @idempotent
    def post(self, request: Request, slug: str) -> Response:
        """Give a person a role, or change it."""
        tenant = get_object_or_404(Tenant.objects.visible_to(self.principal), slug=slug)
        membership = tenants.set_member(principal=self.principal, tenant=tenant, **self.parse_body(request))
        return Response(self.get_serializer(membership).data, status=201)


class MemberDetail(ApiView):
    """One member of a tenant."""

    serializer_class = serializers.MemberSerializer
    lookup_key = "user__username"
    write_scope = "tenants:write"
    tagged = False

    def get_queryset(self) -> Any:
        """Return the members of the tenant in the URL, if the caller may see it."""
        visible = Tenant.objects.visible_to(self.principal)
        return Membership.objects.filter(tenant__in=visible, tenant__slug=self.kwargs["slug"]).select_related(
            "tenant", "user"
        )

    @extend_schema(responses={204: None})
    def delete(self, request: Request, slug: str, username: str) -> Response:
        """Remove a member from a tenant."""
        tenants.remove_member(principal=self.principal, membership=self.find(username))
        return Response(status=204)


class PoolList(ListMixin):
    """Pools: named sets of nodes."""

    serializer_class = pool_serializers.PoolSerializer
    queryset = Pool.objects.all()
    filterset_class = filters_of(Pool, "name")
    read_scope, write_scope = "nodes:read", "nodes:write"
    operator_methods = CHANGES
    get = lists("List pools.")
    post = creates(tenants.create_pool, "Create a pool.")
