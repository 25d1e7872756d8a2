"""The view of /reports/focus/: charges in the columns of FOCUS, as JSON or CSV, page by page."""

import csv
import io
import json
from collections.abc import Mapping
from typing import Any

from django.shortcuts import get_object_or_404
from django.utils import timezone
from rest_framework import serializers
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response

from apps.accounting.api.reports import MOST_CLAIMS, CsvRenderer, ReportView, first_of_month, replace_all, report_schema
from apps.accounting.services.focus import COLUMNS, focus_page
from apps.quotas.models import Tenant
from gpucloud.api import shown
from gpucloud.api.serializers import Question, Strict
from gpucloud.spreadsheets import escape_formula


class FocusQuestion(Question):
    """The parameters of the report."""

    from_ = serializers.DateTimeField(required=False, help_text="The beginning of this month, UTC, unless given.")
    to = serializers.DateTimeField(required=False, help_text="Now, unless given; 366 days after `from` at most.")
    tenant = serializers.CharField(required=False, help_text="Only this tenant; else all that you may see.")
    limit = serializers.IntegerField(
        min_value=1, max_value=MOST_CLAIMS, default=1000, help_text="The size of a page, in claims."
    )
    after = serializers.UUIDField(required=False, help_text="Only claims created after this one.")


class FocusSerializer(Strict):
    """Charges of a period, in the columns of FOCUS 1.2."""

    from_ = shown.time()
    to = shown.time()
    columns = shown.texts("The columns, in their order.")
    rows = serializers.ListField(
        child=serializers.DictField(child=serializers.CharField(allow_null=True)),
        read_only=True,
        help_text="Each with all columns, as text; numbers are exact decimals.",
    )
    next = shown.text("The next page, also in the header `Link`.", null=True)


class FocusCsv(CsvRenderer):
    """The rows, with the columns of FOCUS and no others."""

    def render(
        self, data: Any, accepted_media_type: str | None = None, renderer_context: Mapping[str, Any] | None = None
    ) -> bytes:
        """Render the rows; a refusal is rendered as problem details."""
        if "rows" not in data:
            return json.dumps(data).encode()
        text = io.StringIO()
        writer = csv.DictWriter(text, COLUMNS)
        writer.writeheader()
        writer.writerows({name: escape_formula(value) for name, value in row.items()} for row in data["rows"])
        return text.getvalue().encode()


class FocusReport(ReportView):
    """The charges as FOCUS has them."""

    serializer_class: Any = FocusSerializer
    renderer_classes = [JSONRenderer, FocusCsv]

    @report_schema(FocusQuestion, FocusSerializer)
    def get(self, request: Request) -> Response:
        """Show the charges of a period in the columns of FOCUS 1.2: a row for each claim, GPU model, day and price."""
        values, now = FocusQuestion.read(request), timezone.now()
        visible, slug = Tenant.objects.visible_to(self.principal), values.get("tenant")
        page = focus_page(
            tenants=visible if slug is None else [get_object_or_404(visible, slug=slug)],
            begin=values.get("from") or first_of_month(now),
            end=values.get("to") or now,
            after=values.get("after"),
            limit=values["limit"],
        )
        more = {"from": page["from"].isoformat(), "to": page["to"].isoformat(), "after": page["after"]}
        url = replace_all(request.build_absolute_uri(), more) if page["after"] else None
        headers = {"Link": f'<{url}>; rel="next"'} if url else None
        return Response(self.get_serializer({**page, "next": url}).data, headers=headers)
