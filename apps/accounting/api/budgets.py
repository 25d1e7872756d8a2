"""Views of /budgets/: GPU-hours for a period, and the hours spent."""

from dataclasses import asdict
from typing import Any

from django.utils import timezone
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from apps.quotas.api.methods import changes, creates, lists, removes, shows
from apps.quotas.api.serializers import TenantBySlug
from apps.quotas.api.views import ApiView, ListMixin
from apps.quotas.models import Budget
from apps.quotas.models.budget import DEFAULT_GRACE_SECONDS, HELP, HOUR_PLACES, MOST_GRACE_SECONDS, Period, WhenSpent
from apps.quotas.services import budgets
from apps.scheduling.services.charging.budgets import counted_standing, expected_spent_at, standing_of
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
    percent = shown.integer("Rounded down; from 100 on nothing new is granted, unless `when_spent` is `report`.")
    expected_spent_at = shown.time(
        "The time at which all is spent at the present rate; null: not in this period.", null=True
    )
    stops_at = shown.time("The time at which running claims end, once they have notice; else null.", null=True)


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
    when_spent = serializers.ChoiceField(
        choices=WhenSpent.choices, default=WhenSpent.REFUSE, help_text=HELP["when_spent"]
    )
    grace_seconds = serializers.IntegerField(
        min_value=0, max_value=MOST_GRACE_SECONDS, default=DEFAULT_GRACE_SECONDS, help_text=HELP["grace_seconds"]
    )
    spares_reserved = serializers.BooleanField(default=False, help_text=HELP["spares_reserved"])
    spared_priority = serializers.IntegerField(
        min_value=-1000, max_value=1000, allow_null=True, default=None, help_text=HELP["spared_priority"]
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
        listed, now = isinstance(self.parent, serializers.ListSerializer), timezone.now()
        standing = (counted_standing if listed else standing_of)(budget, now=now)
        if standing is None:
            return None
        period = next((row for row in budget.periods.all() if row.starts_at == standing.starts_at), None)
        expected = (period and period.expected_at) if listed else expected_spent_at(budget, standing, now)
        facts = asdict(standing) | {"percent": standing.percent, "gpu_hours_spent": standing.gpu_hours_spent}
        facts |= {"expected_spent_at": expected, "stops_at": period and period.stops_at}
        return StandingSerializer(facts).data


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
        budgets.change_budget,
        "budget",
        "Set another amount, after which the warnings of the period begin anew, or what happens at 100 %.",
    )
    delete = removes(budgets.delete_budget, "budget", "Remove the budget: the tenant is no longer bounded by it.")
