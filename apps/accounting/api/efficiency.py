"""The view of /reports/efficiency/: allocated less used GPU-hours, as JSON or, with `Accept: text/csv`, as CSV."""

from typing import Any

from django.shortcuts import get_object_or_404
from rest_framework import serializers
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response

from apps.accounting.api.reports import CsvRenderer, ReportView, report_schema
from apps.accounting.services.efficiency import GROUPS, MOST_ROWS, RANGES, Scope, efficiency
from apps.quotas.models import Pool, Tenant
from gpucloud.api import shown
from gpucloud.api.serializers import Question, Strict


class AllocatedHoursSerializer(Strict):
    """Allocated and used GPU-hours."""

    gpu_hours_reserved = shown.number("Allocated: core_request × GPUs × time.")
    gpu_hours_used = shown.number("Measured.")
    gpu_hours_unused = shown.number("Allocated less used; negative where more was used, up to the core limit.")
    percent = shown.number("Used of what was allocated; null where nothing was.", null=True)


class EfficiencyRowSerializer(AllocatedHoursSerializer):
    """A person, a claim or reservation, a tenant or a pool."""

    name = shown.text("A person as in `created_by`, without their token.")
    kind = shown.choice(["claim", "reservation"], "With `by=claim` only.", null=True)
    uid = shown.uid("With `by=claim` only.", null=True)
    tenant = shown.text("With `by=claim` only.", null=True)
    pool = shown.text("With `by=claim` only.", null=True)
    owner = shown.text("`created_by`, with `by=claim` only.", null=True)


class TrendSerializer(AllocatedHoursSerializer):
    """An hour or a day (UTC)."""

    at = shown.time("Its beginning.")


class EfficiencySerializer(Strict):
    """The efficiency of a range: rows with the most unused GPU-hours first."""

    from_ = shown.time()
    to = shown.time()
    counted_until = shown.time("The time of the last count; it runs every five minutes.", null=True)
    by = shown.choice(list(GROUPS))
    range = shown.choice(list(RANGES))
    step_seconds = shown.integer("Length of a span of `trend`.")
    rows = EfficiencyRowSerializer(many=True, read_only=True)
    more = shown.flag("True if `limit` left rows out; the totals have all.")
    trend = TrendSerializer(many=True, read_only=True)
    total = AllocatedHoursSerializer(read_only=True)


class EfficiencyCsvRenderer(CsvRenderer):
    """The rows, a line each, with the period and the range."""

    row, shared = EfficiencyRowSerializer, ("from", "to", "range")


class EfficiencyQuestion(Question):
    """The parameters of the report."""

    by = serializers.ChoiceField(choices=list(GROUPS), default="person", help_text="A row for each of these.")
    range = serializers.ChoiceField(choices=list(RANGES), default="week", help_text="24 hours, or 7 or 30 days (UTC).")
    tenant = serializers.CharField(required=False, help_text="Only this tenant; else all that you may see.")
    pool = serializers.CharField(required=False, help_text="Only this pool.")
    person = serializers.CharField(required=False, help_text="Only what this person made: `user:anna`.")
    limit = serializers.IntegerField(
        min_value=1, max_value=MOST_ROWS, default=MOST_ROWS, help_text=f"The number of rows, {MOST_ROWS} at most."
    )


class EfficiencyReport(ReportView):
    """The efficiency report."""

    serializer_class: Any = EfficiencySerializer
    renderer_classes = [JSONRenderer, EfficiencyCsvRenderer]

    @report_schema(EfficiencyQuestion, EfficiencySerializer)
    def get(self, request: Request) -> Response:
        """Show allocated less used GPU-hours by person, claim, tenant or pool, and their trend."""
        values = EfficiencyQuestion.read(request)
        slug, name = values.get("tenant"), values.get("pool")
        tenant = None if slug is None else get_object_or_404(Tenant.objects.visible_to(self.principal), slug=slug)
        pool = None if name is None else get_object_or_404(Pool, name=name)
        report = efficiency(
            principal=self.principal,
            by=values["by"],
            within=values["range"],
            scope=Scope(tenant, pool, values.get("person")),
            limit=values["limit"],
        )
        return Response(self.get_serializer(report).data)
