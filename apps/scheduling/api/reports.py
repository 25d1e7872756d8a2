"""The view of /reports/usage/: GPU-hours and their cost, as JSON or, with `Accept: text/csv`, as CSV."""

import csv
import io
import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from django.http import Http404
from django.utils import timezone
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.renderers import BaseRenderer, JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.utils.urls import replace_query_param

from apps.quotas.api.views import ApiView
from apps.quotas.models import Tenant
from apps.scheduling.services.accounting.reports import usage_report
from gpucloud.api.serializers import Strict
from gpucloud.spreadsheets import escape_formula

MOST_CLAIMS = 5000
GROUPS = ["model", "person", "claim"]


class ReportRowSerializer(Strict):
    """The use of GPUs of one model in one pool by one tenant (or by one person, or one claim)."""

    tenant = serializers.CharField(read_only=True)
    pool = serializers.CharField(read_only=True)
    gpu_model = serializers.CharField(read_only=True)
    owner = serializers.CharField(
        read_only=True,
        allow_null=True,
        help_text="By person: without their token, as `user:anna`; by claim: its `created_by`; else null.",
    )
    claim = serializers.UUIDField(read_only=True, allow_null=True, help_text="With `by=claim` only.")
    name = serializers.CharField(read_only=True, allow_null=True, help_text="The claim's, with `by=claim` only.")
    gpu_hours_reserved = serializers.CharField(read_only=True, help_text="core_request × GPUs × time on them.")
    gpu_hours_used = serializers.CharField(read_only=True, help_text="Measured, by whole hours; by model only.")
    cost_reserved = serializers.CharField(read_only=True)
    cost_used = serializers.CharField(read_only=True)
    gpu_hours_unpriced = serializers.CharField(read_only=True, help_text="The part of those reserved without a price.")


class ReportTotalSerializer(ReportRowSerializer):
    """The sums of all rows."""

    tenant = pool = gpu_model = owner = claim = name = None  # type: ignore[assignment]


class ReportDaySerializer(Strict):
    """A day of the period."""

    at = serializers.DateTimeField(read_only=True, help_text="Its beginning, UTC.")
    gpu_hours_reserved = serializers.CharField(read_only=True)
    gpu_hours_used = serializers.CharField(read_only=True)


class ForecastSerializer(Strict):
    """The expected amount from `from` to the end of this month, at the mean of the last 7 complete days."""

    to = serializers.DateTimeField(read_only=True)
    gpu_hours_reserved = serializers.CharField(read_only=True)
    cost_reserved = serializers.CharField(read_only=True, help_text="Further hours at the mean price so far.")


class ReportSerializer(Strict):
    """GPU-hours and costs of a period. Numbers are decimal text: nothing is lost to floats."""

    start = serializers.DateTimeField(read_only=True)
    to = serializers.DateTimeField(read_only=True)
    currency = serializers.CharField(read_only=True)
    rows = ReportRowSerializer(many=True, read_only=True)
    total = ReportTotalSerializer(read_only=True)
    trend = ReportDaySerializer(many=True, read_only=True, help_text="Empty by claim.")
    forecast = ForecastSerializer(
        read_only=True,
        allow_null=True,
        help_text="Null by claim, for a period that is over, and before its first complete day.",
    )
    next = serializers.CharField(
        read_only=True,
        allow_null=True,
        help_text="By claim: the next page, also in the header `Link`; the sums are of this page.",
    )

    def get_fields(self) -> dict[str, Any]:
        """Return the fields with `from`, which is a Python keyword and cannot be declared above."""
        fields = super().get_fields()
        fields.pop("start")
        return {"from": serializers.DateTimeField(read_only=True), **fields}


class CsvRenderer(BaseRenderer):
    """The rows of a report, a line each; period and currency in every line, so that a line can stand alone."""

    media_type = "text/csv"
    format = "csv"
    charset = "utf-8"
    row: Any = ReportRowSerializer
    shared: tuple[str, ...] = ("from", "to", "currency")

    def render(
        self, data: Any, accepted_media_type: str | None = None, renderer_context: Mapping[str, Any] | None = None
    ) -> bytes:
        """Render the rows; a refusal is rendered as problem details."""
        if "rows" not in data:
            return json.dumps(data).encode()
        text = io.StringIO()
        shared = {name: data[name] for name in self.shared}
        writer = csv.DictWriter(text, [*shared, *self.row().fields])
        writer.writeheader()
        writer.writerows(
            {name: escape_formula(value) for name, value in {**shared, **row}.items()} for row in data["rows"]
        )
        return text.getvalue().encode()


class PeriodSerializer(Strict):
    """The parameters of a report."""

    to = serializers.DateTimeField(required=False)
    tenant = serializers.CharField(required=False)
    by = serializers.ChoiceField(choices=GROUPS, default="model")
    after = serializers.UUIDField(required=False)
    limit = serializers.RegexField(r"^[0-9]{1,4}$", required=False)

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Check the page: only claims come in pages, and not in empty ones."""
        if not 1 <= int(attrs.get("limit", 1)) <= MOST_CLAIMS:
            raise serializers.ValidationError({"limit": [f"From 1 to {MOST_CLAIMS}."]})
        if attrs["by"] != "claim" and (beside := sorted({"after", "limit"} & attrs.keys())):
            raise serializers.ValidationError({name: ["Only with by=claim."] for name in beside})
        return attrs

    def get_fields(self) -> dict[str, Any]:
        """Return the fields with `from`, which is a Python keyword and cannot be declared above."""
        return {"from": serializers.DateTimeField(required=False), **super().get_fields()}


PARAMETERS = [
    OpenApiParameter("from", OpenApiTypes.DATETIME, description="The beginning of this month, UTC, unless given."),
    OpenApiParameter("to", OpenApiTypes.DATETIME, description="Now, unless given; 366 days after `from` at most."),
    OpenApiParameter("tenant", OpenApiTypes.STR, description="Only this tenant; else all that you may see."),
    OpenApiParameter("by", OpenApiTypes.STR, enum=GROUPS, description="A row for each person too, or for each claim."),
    OpenApiParameter("limit", OpenApiTypes.INT, description=f"By claim: the size of a page, {MOST_CLAIMS} at most."),
    OpenApiParameter("after", OpenApiTypes.UUID, description="By claim: only claims created after this one."),
]


class UsageReport(ApiView):
    """The usage report."""

    serializer_class: Any = ReportSerializer
    renderer_classes = [JSONRenderer, CsvRenderer]
    read_scope = "quotas:read"
    filter_backends = []
    pagination_class = None

    @extend_schema(
        parameters=PARAMETERS,
        responses={(200, "application/json"): ReportSerializer, (200, "text/csv"): OpenApiTypes.STR},
    )
    def get(self, request: Request) -> Response:
        """Show the GPU-hours reserved and used of a period, their cost, their trend and a forecast."""
        question = PeriodSerializer(data=dict(request.query_params.items()))
        question.is_valid(raise_exception=True)
        values = question.validated_data
        now = timezone.now()
        report = usage_report(
            tenants=self._tenants(values.get("tenant")),
            begin=values.get("from") or _month(now),
            end=values.get("to") or now,
            by=values["by"],
            after=values.get("after"),
            limit=int(values.get("limit", MOST_CLAIMS)),
        )
        # The link has the period of this answer, so that all pages are of one report.
        more = {"from": report["from"].isoformat(), "to": report["to"].isoformat(), "after": report["after"]}
        url = replace_all(request.build_absolute_uri(), more) if report["after"] else None
        headers = {"Link": f'<{url}>; rel="next"'} if url else None
        return Response(self.get_serializer({**report, "next": url}).data, headers=headers)

    def _tenants(self, slug: str | None) -> list[Tenant]:
        visible = Tenant.objects.visible_to(self.principal)
        tenants = list(visible if slug is None else visible.filter(slug=slug))
        if slug is not None and not tenants:
            raise Http404
        return tenants


def replace_all(url: str, parameters: dict[str, Any]) -> str:
    """Return the URL with these parameters."""
    for name, value in parameters.items():
        url = replace_query_param(url, name, str(value))
    return url


def _month(now: datetime) -> datetime:
    return now.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
