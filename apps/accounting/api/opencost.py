"""The view of /reports/opencost/: allocations in the shape of OpenCost's `/allocation/compute`."""

import re
from datetime import UTC, datetime, timedelta
from typing import Any

from django.shortcuts import get_object_or_404
from django.utils import timezone
from django.utils.dateparse import parse_datetime
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from apps.accounting.api.reports import ReportView
from apps.accounting.services.opencost import AGGREGATES, allocation_sets
from apps.quotas.models import Tenant
from gpucloud.api import shown
from gpucloud.api.serializers import Question, Strict

UNITS = {"m": timedelta(minutes=1), "h": timedelta(hours=1), "d": timedelta(days=1), "w": timedelta(weeks=1)}
LONGEST_DURATION = timedelta(days=3660)
DURATION = re.compile(r"([1-9][0-9]{0,5})([mhdw])")
DEFAULT = ("cluster", "namespace", "pod")
NO_EFFECT = "Accepted for OpenCost's clients, without effect: "


class WindowField(serializers.CharField):
    """A window as OpenCost writes it, read as two moments."""

    def to_internal_value(self, data: Any) -> Any:
        """Return (begin, end). Raises ValidationError."""
        bounds = read_window(super().to_internal_value(data), timezone.now())
        if bounds is None:
            raise serializers.ValidationError(
                "Write today, yesterday, week, lastweek, month, lastmonth, a duration like 30m, 12h or 7d,"
                " or two times with a comma between them, as RFC 3339 with a time zone or in seconds."
            )
        return bounds


class StepField(serializers.CharField):
    """A duration such as 30m, 2h or 1d."""

    def to_internal_value(self, data: Any) -> Any:
        """Return the duration. Raises ValidationError."""
        if (step := read_duration(super().to_internal_value(data))) is None:
            raise serializers.ValidationError("Write a duration like 30m, 2h or 1d.")
        return step


class AggregateField(serializers.CharField):
    """Names of properties, with commas between them."""

    def to_internal_value(self, data: Any) -> Any:
        """Return the names. Raises ValidationError."""
        names = tuple(dict.fromkeys(super().to_internal_value(data).split(",")))
        if unknown := [name for name in names if name not in AGGREGATES]:
            raise serializers.ValidationError(f"{unknown[0]} is not known; choose from {', '.join(AGGREGATES)}.")
        return names


class OpencostQuestion(Question):
    """The parameters of OpenCost's query, and the tenant."""

    window = WindowField(
        required=False,
        help_text="`today`, `lastweek`, `30d`, or two times with a comma between them; `7d` unless given.",
    )
    aggregate = AggregateField(
        required=False, help_text=f"Some of {', '.join(AGGREGATES)}; `{','.join(DEFAULT)}` unless given."
    )
    step = StepField(required=False, help_text="The length of a set, as `1d`; one set unless given.")
    accumulate = serializers.BooleanField(default=False, help_text="True: one set, whatever `step` says.")
    tenant = serializers.CharField(required=False, help_text="Only this tenant; else all that you may see.")
    resolution = serializers.CharField(required=False, help_text=NO_EFFECT + "times are exact.")
    includeIdle = serializers.BooleanField(  # noqa: N815 - OpenCost's name
        default=False, help_text=NO_EFFECT + "GPUs that nobody holds are charged to nobody."
    )
    idleByNode = serializers.BooleanField(default=False, help_text=NO_EFFECT + "see `includeIdle`.")  # noqa: N815
    includeProportionalAssetResourceCosts = serializers.BooleanField(  # noqa: N815
        default=False, help_text=NO_EFFECT + "GPUs are shared by time."
    )
    format = serializers.ChoiceField(choices=["json"], required=False, help_text="Nothing but JSON.")


class OpencostSerializer(Strict):
    """OpenCost's envelope."""

    code = shown.integer("200.")
    status = shown.text("`success`.")
    data_ = serializers.ListField(
        child=serializers.DictField(child=serializers.JSONField()),
        read_only=True,
        help_text="A set for each step, oldest first: allocations by name.",
    )


class OpencostReport(ReportView):
    """The charges as OpenCost has them."""

    serializer_class: Any = OpencostSerializer

    @extend_schema(parameters=OpencostQuestion.parameters(), responses=OpencostSerializer)
    def get(self, request: Request) -> Response:
        """Show GPU-hours, cost and efficiency of a window in the shape of OpenCost's `/allocation/compute`."""
        values = OpencostQuestion.read(request)
        visible, slug = Tenant.objects.visible_to(self.principal), values.get("tenant")
        begin, end = values.get("window") or (timezone.now() - timedelta(days=7), timezone.now())
        sets = allocation_sets(
            tenants=visible if slug is None else [get_object_or_404(visible, slug=slug)],
            begin=begin,
            end=end,
            step=None if values["accumulate"] else values.get("step"),
            by=values.get("aggregate", DEFAULT),
        )
        return Response({"code": 200, "status": "success", "data": sets})


def read_window(text: str, now: datetime) -> tuple[datetime, datetime] | None:
    """Return the two moments of a window as OpenCost writes it, in UTC; None: it is none."""
    today = now.replace(hour=0, minute=0, second=0, microsecond=0)
    # OpenCost's weeks begin on Sunday.
    week, month = today - timedelta(days=(today.weekday() + 1) % 7), today.replace(day=1)
    named = {
        "today": (today, now),
        "yesterday": (today - timedelta(days=1), today),
        "week": (week, now),
        "lastweek": (week - timedelta(days=7), week),
        "month": (month, now),
        "lastmonth": ((month - timedelta(days=1)).replace(day=1), month),
    }
    if text in named:
        return named[text]
    if (length := read_duration(text)) is not None:
        return now - length, now
    parts = [_moment(part) for part in text.split(",")]
    return (parts[0], parts[1]) if len(parts) == 2 and parts[0] and parts[1] else None


def read_duration(text: str) -> timedelta | None:
    """Return a duration such as 30m, 12h, 7d or 2w; None: it is none, or longer than any report."""
    found = DURATION.fullmatch(text)
    length = int(found[1]) * UNITS[found[2]] if found else None
    return length if length and length <= LONGEST_DURATION else None


def _moment(text: str) -> datetime | None:
    try:
        if text.isascii() and text.isdecimal() and len(text) < 12:
            return datetime.fromtimestamp(int(text), tz=UTC)
        moment = parse_datetime(text)
    except (ValueError, OverflowError):
        return None
    return moment.astimezone(UTC) if moment and moment.tzinfo else None
