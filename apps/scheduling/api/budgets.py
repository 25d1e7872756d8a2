"""Views of /budgets/: GPU-hours for a period, and the hours spent."""

from typing import Any

from django.utils import timezone
from django_filters import rest_framework as filters
from drf_spectacular.utils import extend_schema, extend_schema_field
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from apps.quotas.api.serializers import TenantBySlug
from apps.quotas.api.views import ApiView, ListMixin
from apps.quotas.idempotency import idempotent
from apps.quotas.models import Budget
from apps.quotas.models.budget import HOUR_PLACES, Period
from apps.quotas.services import budgets
from apps.scheduling.services.charging.budgets import counted_standing, standing_of
from gpucloud.api import etags
from gpucloud.api.filters import Changed
from gpucloud.api.serializers import Strict


class StandingSerializer(Strict):
    """The hours spent in the present period."""

    starts_at = serializers.DateTimeField(read_only=True)
    ends_at = serializers.DateTimeField(read_only=True)
    as_of = serializers.DateTimeField(
        read_only=True, help_text="The time of the count: now for one budget, minutes ago in lists."
    )
    gpu_hours_spent = serializers.CharField(read_only=True)
    percent = serializers.IntegerField(read_only=True, help_text="Rounded down; from 100 on nothing new is granted.")


class BudgetSerializer(Strict):
    """The GPU-hours that a tenant may reserve in each period."""

    id = serializers.IntegerField(source="pk", read_only=True)
    tenant = TenantBySlug()
    period = serializers.ChoiceField(choices=Period.choices)
    starts_at = serializers.DateTimeField(allow_null=True, default=None, help_text="With the period `custom` only.")
    ends_at = serializers.DateTimeField(allow_null=True, default=None, help_text="With the period `custom` only.")
    gpu_hours = serializers.DecimalField(
        max_digits=14, decimal_places=HOUR_PLACES, min_value=0, help_text='As text: "100".'
    )
    current = serializers.SerializerMethodField(help_text="The present period; null if there is none.")
    version = serializers.IntegerField(read_only=True)
    created_at = serializers.DateTimeField(read_only=True)
    updated_at = serializers.DateTimeField(read_only=True)

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Check the times: they belong to `custom`, which has both."""
        begin, end = attrs.get("starts_at"), attrs.get("ends_at")
        custom = attrs.get("period") == Period.CUSTOM
        if custom and (begin is None or end is None or begin >= end):
            raise serializers.ValidationError({"ends_at": ["Give starts_at, and ends_at after it."]})
        if not custom and (begin, end) != (None, None):
            raise serializers.ValidationError({"starts_at": ["Only for the period `custom`."]})
        return attrs

    @extend_schema_field(StandingSerializer(allow_null=True))
    def get_current(self, budget: Any) -> Any:
        """Return the standing: counted now for one budget, as last counted for a list."""
        count = counted_standing if isinstance(self.parent, serializers.ListSerializer) else standing_of
        standing = count(budget, now=timezone.now())
        return standing and StandingSerializer(standing).data


class BudgetChangeSerializer(BudgetSerializer):
    """The fields of a budget that can be changed."""

    tenant = serializers.CharField(source="tenant.slug", read_only=True)  # type: ignore[assignment]
    period = serializers.ChoiceField(choices=Period.choices, read_only=True)
    starts_at = serializers.DateTimeField(read_only=True, allow_null=True)
    ends_at = serializers.DateTimeField(read_only=True, allow_null=True)


class BudgetFilter(Changed):
    """Budgets by tenant, period and time of change."""

    tenant = filters.CharFilter(field_name="tenant__slug")

    class Meta:
        model = Budget
        fields = ["tenant", "period", "updated_since"]


class BudgetView(ApiView):
    """The common part of budget views."""

    read_scope, write_scope = "quotas:read", "quotas:write"

    def get_queryset(self) -> Any:
        """Return the budgets that the caller may see."""
        return Budget.objects.visible_to(self.principal).select_related("tenant").prefetch_related("periods")


class BudgetList(BudgetView, ListMixin):
    """Budgets: GPU-hours for a period."""

    serializer_class = BudgetSerializer
    filterset_class = BudgetFilter

    def get(self, request: Request) -> Response:
        """List budgets, with the hours spent of each as last counted."""
        return self.list_page(self.get_queryset())

    @idempotent
    def post(self, request: Request) -> Response:
        """Create a tenant's budget of GPU-hours. Hours reserved in the present period count."""
        return self.answer(budgets.create_budget(principal=self.principal, **self.parse_body(request)), status=201)


class BudgetDetail(BudgetView):
    """One budget."""

    serializer_class = BudgetChangeSerializer

    def get(self, request: Request, pk: int) -> Response:
        """Show a budget, and the hours spent of it now."""
        return self.answer(self.find(pk))

    def patch(self, request: Request, pk: int) -> Response:
        """Set another amount. The warnings of the present period begin anew."""
        budget = self.find(pk)
        values = {"gpu_hours": budget.gpu_hours, **self.parse_body(request, partial=True)}
        versions = etags.if_match(request)
        return self.answer(budgets.change_budget(principal=self.principal, budget=budget, versions=versions, **values))

    @extend_schema(responses={204: None})
    def delete(self, request: Request, pk: int) -> Response:
        """Remove the budget: the tenant is no longer bounded by it."""
        budgets.delete_budget(principal=self.principal, budget=self.find(pk), versions=etags.if_match(request))
        return Response(status=204)
