"""Views of /budgets/: GPU-hours for a period, and the hours spent."""

from typing import Any

from django.utils import timezone
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from apps.quotas.api.methods import changes, creates, lists, removes, shows
from apps.quotas.api.serializers import TenantBySlug
from apps.quotas.api.views import ApiView, ListMixin
from apps.quotas.models import Budget
from apps.quotas.models.budget import HOUR_PLACES, Period
from apps.quotas.services import budgets
from apps.scheduling.services.charging.budgets import counted_standing, standing_of
from gpucloud.api import shown
from gpucloud.api.filters import filters_of
from gpucloud.api.serializers import Strict
from gpucloud.api.shown import Columns


class StandingSerializer(Strict):
    """The hours spent in the present period."""

    starts_at = shown.time()
    ends_at = shown.time()
    as_of = shown.time("The time of the count: now for one budget, minutes ago in lists.")
    gpu_hours_spent = shown.text()
    percent = shown.integer("Rounded down; from 100 on nothing new is granted.")


class BudgetSerializer(Strict):
    """The GPU-hours that a tenant may reserve in each period."""

    id = shown.integer(source="pk")
    tenant = TenantBySlug()
    period = serializers.ChoiceField(choices=Period.choices)
    starts_at = serializers.DateTimeField(allow_null=True, default=None, help_text="With the period `custom` only.")
    ends_at = serializers.DateTimeField(allow_null=True, default=None, help_text="With the period `custom` only.")
    gpu_hours = serializers.DecimalField(
        max_digits=14, decimal_places=HOUR_PLACES, min_value=0, help_text='As text: "100".'
    )
    current = serializers.SerializerMethodField(help_text="The present period; null if there is none.")
    changed = Columns(Budget, "version created_at updated_at")

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

    tenant = shown.text(source="tenant.slug")
    period = shown.choice(Period.choices)
    starts_at = shown.time(null=True)
    ends_at = shown.time(null=True)


class BudgetView(ApiView):
    """The common part of budget views."""

    read_scope, write_scope = "quotas:read", "quotas:write"
    queryset = Budget.objects.select_related("tenant").prefetch_related("periods")


class BudgetList(BudgetView, ListMixin):
    """Budgets: GPU-hours for a period."""

    serializer_class = BudgetSerializer
    filterset_class = filters_of(Budget, "period", tenant="tenant__slug")
    get = lists("List budgets, with the hours spent of each as last counted.")
    post = creates(
        budgets.create_budget, "Create a tenant's budget of GPU-hours. Hours reserved in the present period count."
    )


class BudgetDetail(BudgetView):
    """One budget."""

    serializer_class = BudgetChangeSerializer
    get = shows("Show a budget, and the hours spent of it now.")

    patch = changes(
        budgets.change_budget, "budget", "Set another amount. The warnings of the present period begin anew."
    )
    delete = removes(budgets.delete_budget, "budget", "Remove the budget: the tenant is no longer bounded by it.")
