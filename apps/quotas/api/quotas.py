"""Reading /quotas/ and each quota's ledger. Changes can be previewed, which needs claims: `apps.scheduling.api`."""

from typing import Any

from django.core.validators import RegexValidator
from django.shortcuts import get_object_or_404
from django_filters import rest_framework as filters

from apps.quotas.api import serializers
from apps.quotas.api.methods import lists, shows
from apps.quotas.api.views import ApiView, ListMixin
from apps.quotas.models import LedgerEntry, ResourceQuota
from apps.quotas.models.resource import RESOURCE
from gpucloud.api.filters import filters_of


class QuotaView(ApiView):
    """Base of the quota views."""

    read_scope, write_scope = "quotas:read", "quotas:write"
    queryset = ResourceQuota.objects.select_related("tenant", "pool", "share")


class QuotaList(QuotaView, ListMixin):
    """Quotas of tenants."""

    serializer_class = serializers.QuotaSerializer
    filterset_class = filters_of(
        ResourceQuota,
        tenant="tenant__slug",
        pool="pool__name",
        resource=filters.CharFilter(validators=[RegexValidator(RESOURCE, serializers.RESOURCE_WRONG)]),
    )
    get = lists("List quotas.")


class QuotaDetail(QuotaView):
    """One quota."""

    serializer_class = serializers.QuotaChangeSerializer
    get = shows("Show a quota.")


class QuotaLedger(ListMixin):
    """Ledger of a quota."""

    read_scope = "quotas:read"
    serializer_class = serializers.LedgerSerializer
    filterset_class = filters_of(
        LedgerEntry,
        "kind",
        base=filters.FilterSet,
        claim=filters.UUIDFilter(field_name="claim_uid"),
        since=filters.IsoDateTimeFilter(field_name="at", lookup_expr="gte"),
        until=filters.IsoDateTimeFilter(field_name="at", lookup_expr="lt"),
    )

    def get_queryset(self) -> Any:
        """Return the entries of the quota in the URL; 404 if the caller may not see it."""
        if getattr(self, "swagger_fake_view", False):
            return LedgerEntry.objects.none()
        quota = get_object_or_404(ResourceQuota.objects.visible_to(self.principal), pk=self.kwargs["pk"])
        return LedgerEntry.objects.filter(tenant=quota.tenant, pool=quota.pool, resource=quota.resource)

    get = lists("List the changes of a quota, newest first.")
