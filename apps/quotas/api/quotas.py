"""Reading /quotas/ and each quota's ledger. Changes can be previewed, which needs claims: `apps.scheduling.api`."""

from typing import Any

from django.shortcuts import get_object_or_404
from django_filters import rest_framework as filters
from rest_framework.request import Request
from rest_framework.response import Response

from apps.quotas.api import serializers
from apps.quotas.api.views import ApiView, ListMixin
from apps.quotas.models import LedgerEntry, ResourceQuota
from gpucloud.api.filters import Changed


class QuotaFilter(Changed):
    """Quotas by tenant, pool and resource."""

    tenant = filters.CharFilter(field_name="tenant__slug")
    pool = filters.CharFilter(field_name="pool__name")

    class Meta:
        model = ResourceQuota
        fields = ["tenant", "pool", "resource", "updated_since"]


class LedgerFilter(filters.FilterSet):
    """Entries by kind, claim and time."""

    claim = filters.UUIDFilter(field_name="claim_uid")
    since = filters.IsoDateTimeFilter(field_name="at", lookup_expr="gte")
    until = filters.IsoDateTimeFilter(field_name="at", lookup_expr="lt")

    class Meta:
        model = LedgerEntry
        fields = ["kind", "claim", "since", "until"]


class QuotaView(ApiView):
    """Base of the quota views."""

    read_scope, write_scope = "quotas:read", "quotas:write"

    def get_queryset(self) -> Any:
        """Return the rows visible to the caller."""
        return ResourceQuota.objects.visible_to(self.principal).select_related("tenant", "pool", "share")


class QuotaList(QuotaView, ListMixin):
    """Quotas of tenants."""

    serializer_class = serializers.QuotaSerializer
    filterset_class = QuotaFilter

    def get(self, request: Request) -> Response:
        """List quotas."""
        return self.list_page(self.get_queryset())


class QuotaDetail(QuotaView):
    """One quota."""

    serializer_class = serializers.QuotaChangeSerializer

    def get(self, request: Request, pk: int) -> Response:
        """Show a quota."""
        return self.answer(self.find(pk))


class QuotaLedger(QuotaView, ListMixin):
    """Ledger of a quota."""

    serializer_class = serializers.LedgerSerializer
    filterset_class = LedgerFilter

    def get_queryset(self) -> Any:
        """Return the entries of the quota in the URL; 404 if the caller may not see it."""
        if getattr(self, "swagger_fake_view", False):
            return LedgerEntry.objects.none()
        quota = get_object_or_404(super().get_queryset(), pk=self.kwargs["pk"])
        return LedgerEntry.objects.filter(tenant=quota.tenant, pool=quota.pool, resource=quota.resource)

    def get(self, request: Request, pk: int) -> Response:
        """List the changes of a quota, newest first."""
        return self.list_page(self.get_queryset())
