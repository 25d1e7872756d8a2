"""The view of /reports/usage/: GPU-hours and their cost, as JSON or, with `Accept: text/csv`, as CSV."""

import csv
import io
import json
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any

from django.shortcuts import get_object_or_404
from django.utils import timezone
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.renderers import BaseRenderer, JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.utils.urls import replace_query_param

from apps.accounting.services.reports import usage_report
from apps.quotas.api.views import ApiView
from apps.quotas.models import Organisation, Tenant
from apps.quotas.principals import Principal
from apps.quotas.services.organisation_quotas import tenants_below
from gpucloud.api import shown
from gpucloud.api.serializers import Question, Strict
from gpucloud.spreadsheets import escape_formula

MOST_CLAIMS = 5000
GROUPS = ["model", "organisation", "person", "claim"]
Get = Callable[..., Response]


class ReportRowSerializer(Strict):
    """The use of GPUs of one model in one pool by one tenant (or by one person, one claim, or one organisation)."""

    organisation = shown.text(
        "With `by=organisation` only: all that is below it, so rows overlap, and `total` counts each tenant once. "
        "Null: tenants without an organisation.",
        null=True,
    )
    tenant = shown.text("Null with `by=organisation`.", null=True)
    pool = shown.text()
    gpu_model = shown.text()
    owner = shown.text(
        "By person: without their token, as `user:anna`; by claim: its `created_by`; else null.", null=True
    )
    claim = shown.uid("With `by=claim` only.", null=True)
    name = shown.text("The claim's, with `by=claim` only.", null=True)
    gpu_hours_reserved = shown.text("core_request × GPUs × time on them.")
    gpu_hours_used = shown.text("Measured, by whole hours; by model and by organisation only.")
    cost_reserved = shown.text()
    cost_used = shown.text()
    gpu_hours_unpriced = shown.text("The part of those reserved without a price.")


class ReportTotalSerializer(ReportRowSerializer):
    """The sums of all rows."""

    organisation = tenant = pool = gpu_model = owner = claim = name = None


class ReportDaySerializer(Strict):
    """A day of the period."""

    at = shown.time("Its beginning, UTC.")
    gpu_hours_reserved = shown.text()
    gpu_hours_used = shown.text()


class ForecastSerializer(Strict):
    """The expected amount from `from` to the end of this month, at the mean of the last 7 complete days."""

    to = shown.time()
    gpu_hours_reserved = shown.text()
    cost_reserved = shown.text("Further hours at the mean price so far.")


class ReportSerializer(Strict):
    """GPU-hours and costs of a period. Numbers are decimal text: nothing is lost to floats."""

    from_ = shown.time()
    to = shown.time()
    currency = shown.text()
    rows = ReportRowSerializer(many=True, read_only=True)
    total = ReportTotalSerializer(read_only=True)
    trend = ReportDaySerializer(many=True, read_only=True, help_text="Empty by claim.")
    forecast = ForecastSerializer(
        read_only=True,
        allow_null=True,
        help_text="Null by claim, for a period that is over, and before its first complete day.",
    )
    next = shown.text("By claim: the next page, also in the header `Link`; the sums are of this page.", null=True)


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


class UsageQuestion(Question):
    """The parameters of a report."""

    from_ = serializers.DateTimeField(required=False, help_text="The beginning of this month, UTC, unless given.")
    to = serializers.DateTimeField(required=False, help_text="Now, unless given; 366 days after `from` at most.")
    tenant = serializers.CharField(required=False, help_text="Only this tenant; else all that you may see.")
    organisation = serializers.SlugField(
        required=False, help_text="Only tenants of this organisation and of all below it, as far as you may see them."
    )
    by = serializers.ChoiceField(
        choices=GROUPS,
        default="model",
        help_text="A row for each person too, or for each claim; or for each organisation with all that is below it.",
    )
    limit = serializers.IntegerField(
        min_value=1,
        max_value=MOST_CLAIMS,
        required=False,
        help_text=f"By claim: the size of a page, {MOST_CLAIMS} at most.",
    )
    after = serializers.UUIDField(required=False, help_text="By claim: only claims created after this one.")

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Check that there is one filter, and the page: only claims come in pages."""
        if {"tenant", "organisation"} <= attrs.keys():
            raise serializers.ValidationError({"organisation": ["Give a tenant or an organisation, not both."]})
        if attrs["by"] != "claim" and (beside := sorted({"after", "limit"} & attrs.keys())):
            raise serializers.ValidationError({name: ["Only with by=claim."] for name in beside})
        return attrs


class ReportView(ApiView):
    """The common part of reports."""

    read_scope = "quotas:read"
    filter_backends = []
    pagination_class = None


def report_schema(question: type[Question], answer: type[Strict]) -> Callable[[Get], Get]:
    """Return the decorator that documents a report: its parameters, and its answer as JSON or CSV."""
    kinds = {(200, "application/json"): answer, (200, "text/csv"): OpenApiTypes.STR}
    documented: Callable[[Get], Get] = extend_schema(parameters=question.parameters(), responses=kinds)
    return documented


class UsageReport(ReportView):
    """The usage report."""

    serializer_class: Any = ReportSerializer
    renderer_classes = [JSONRenderer, CsvRenderer]

    @report_schema(UsageQuestion, ReportSerializer)
    def get(self, request: Request) -> Response:
        """Show the GPU-hours reserved and used of a period, their cost, their trend and a forecast."""
        values, now = UsageQuestion.read(request), timezone.now()
        report = usage_report(
            tenants=chosen_tenants(self.principal, values),
            begin=values.get("from") or first_of_month(now),
            end=values.get("to") or now,
            by=values["by"],
            after=values.get("after"),
            limit=values.get("limit", MOST_CLAIMS),
        )
        # The link has the period of this answer, so that all pages are of one report.
        more = {"from": report["from"].isoformat(), "to": report["to"].isoformat(), "after": report["after"]}
        url = replace_all(request.build_absolute_uri(), more) if report["after"] else None
        headers = {"Link": f'<{url}>; rel="next"'} if url else None
        return Response(self.get_serializer({**report, "next": url}).data, headers=headers)


def chosen_tenants(principal: Principal, values: Mapping[str, Any]) -> Iterable[Tenant]:
    """Return the visible tenants that a report's question names: one, those of an organisation, or all.

    Raises Http404.
    """
    visible = Tenant.objects.visible_to(principal)
    if (slug := values.get("tenant")) is not None:
        return [get_object_or_404(visible, slug=slug)]
    if (slug := values.get("organisation")) is not None:
        below = tenants_below(get_object_or_404(Organisation.objects.visible_to(principal), slug=slug))
        return visible.filter(pk__in=below.order_by().values("pk"))
    return visible


def replace_all(url: str, parameters: dict[str, Any]) -> str:
    """Return the URL with these parameters."""
    for name, value in parameters.items():
        url = replace_query_param(url, name, str(value))
    return url


def first_of_month(now: datetime) -> datetime:
    """Return the beginning of the month, UTC."""
    return now.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
