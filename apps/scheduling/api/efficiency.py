"""The view of /reports/efficiency/: allocated less used GPU-hours, as JSON or, with `Accept: text/csv`, as CSV."""

from typing import Any

from django.http import Http404
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response

from apps.quotas.api.views import ApiView
from apps.quotas.models import Pool, Tenant
from apps.scheduling.api.reports import CsvRenderer
from apps.scheduling.services.accounting.efficiency import GROUPS, MOST_ROWS, RANGES, Scope, efficiency
from gpucloud.api.serializers import Strict


class AllocatedHoursSerializer(Strict):
    """Allocated and used GPU-hours."""

    gpu_hours_reserved = serializers.FloatField(read_only=True, help_text="Allocated: core_request × GPUs × time.")
    gpu_hours_used = serializers.FloatField(read_only=True, help_text="Measured.")
    gpu_hours_unused = serializers.FloatField(
        read_only=True, help_text="Allocated less used; negative where more was used, up to the core limit."
    )
    percent = serializers.FloatField(
        read_only=True, allow_null=True, help_text="Used of what was allocated; null where nothing was."
    )


class EfficiencyRowSerializer(AllocatedHoursSerializer):
    """A person, a claim or reservation, a tenant or a pool."""

    name = serializers.CharField(read_only=True, help_text="A person as in `created_by`, without their token.")
    kind = serializers.ChoiceField(
        choices=["claim", "reservation"], read_only=True, allow_null=True, help_text="With `by=claim` only."
    )
    uid = serializers.UUIDField(read_only=True, allow_null=True, help_text="With `by=claim` only.")
    tenant = serializers.CharField(read_only=True, allow_null=True, help_text="With `by=claim` only.")
    pool = serializers.CharField(read_only=True, allow_null=True, help_text="With `by=claim` only.")
    owner = serializers.CharField(read_only=True, allow_null=True, help_text="`created_by`, with `by=claim` only.")


class TrendSerializer(AllocatedHoursSerializer):
    """An hour or a day (UTC)."""

    at = serializers.DateTimeField(read_only=True, help_text="Its beginning.")


class EfficiencySerializer(Strict):
    """The efficiency of a range: rows with the most unused GPU-hours first."""

    start = serializers.DateTimeField(read_only=True)
    to = serializers.DateTimeField(read_only=True)
    counted_until = serializers.DateTimeField(
        read_only=True, allow_null=True, help_text="The time of the last count; it runs every five minutes."
    )
    by = serializers.ChoiceField(choices=list(GROUPS), read_only=True)
    range = serializers.ChoiceField(choices=list(RANGES), read_only=True)
    step_seconds = serializers.IntegerField(read_only=True, help_text="Length of a span of `trend`.")
    rows = EfficiencyRowSerializer(many=True, read_only=True)
    more = serializers.BooleanField(read_only=True, help_text="True if `limit` left rows out; the totals have all.")
    trend = TrendSerializer(many=True, read_only=True)
    total = AllocatedHoursSerializer(read_only=True)

    def get_fields(self) -> dict[str, Any]:
        """Return the fields with `from`, which is a Python keyword and cannot be declared above."""
        fields = super().get_fields()
        fields.pop("start")
        return {"from": serializers.DateTimeField(read_only=True), **fields}


class EfficiencyCsvRenderer(CsvRenderer):
    """The rows, a line each, with the period and the range."""

    row, shared = EfficiencyRowSerializer, ("from", "to", "range")


class QuestionSerializer(Strict):
    """The parameters of the report."""

    by = serializers.ChoiceField(choices=list(GROUPS), default="person")
    range = serializers.ChoiceField(choices=list(RANGES), default="week")
    tenant = serializers.CharField(required=False)
    pool = serializers.CharField(required=False)
    person = serializers.CharField(required=False)
    limit = serializers.RegexField(r"^[0-9]{1,4}$", default=str(MOST_ROWS))

    def validate_limit(self, value: str) -> int:
        """Check the number of rows."""
        if not 1 <= int(value) <= MOST_ROWS:
            raise serializers.ValidationError(f"From 1 to {MOST_ROWS}.")
        return int(value)


PARAMETERS = [
    OpenApiParameter("by", OpenApiTypes.STR, enum=list(GROUPS), description="A row for each of these."),
    OpenApiParameter("range", OpenApiTypes.STR, enum=list(RANGES), description="24 hours, or 7 or 30 days (UTC)."),
    OpenApiParameter("tenant", OpenApiTypes.STR, description="Only this tenant; else all that you may see."),
    OpenApiParameter("pool", OpenApiTypes.STR, description="Only this pool."),
    OpenApiParameter("person", OpenApiTypes.STR, description="Only what this person made: `user:anna`."),
    OpenApiParameter("limit", OpenApiTypes.INT, description=f"The number of rows, {MOST_ROWS} at most."),
]


class EfficiencyReport(ApiView):
    """The efficiency report."""

    serializer_class: Any = EfficiencySerializer
    renderer_classes = [JSONRenderer, EfficiencyCsvRenderer]
    read_scope = "quotas:read"
    filter_backends = []
    pagination_class = None

    @extend_schema(
        parameters=PARAMETERS,
        responses={(200, "application/json"): EfficiencySerializer, (200, "text/csv"): OpenApiTypes.STR},
    )
    def get(self, request: Request) -> Response:
        """Show allocated less used GPU-hours by person, claim, tenant or pool, and their trend."""
        question = QuestionSerializer(data=dict(request.query_params.items()))
        question.is_valid(raise_exception=True)
        values = question.validated_data
        tenant = _named(Tenant.objects.visible_to(self.principal), slug=values.get("tenant"))
        pool = _named(Pool.objects.all(), name=values.get("pool"))
        report = efficiency(
            principal=self.principal,
            by=values["by"],
            within=values["range"],
            scope=Scope(tenant, pool, values.get("person")),
            limit=values["limit"],
        )
        return Response(self.get_serializer(report).data)


def _named(rows: Any, **name: str | None) -> Any:
    """Return the row of this name; None if none was named."""
    if None in name.values():
        return None
    row = rows.filter(**name).first()
    if row is None:
        raise Http404
    return row
