"""Efficiency: allocated and unused GPU-hours by person, claim, tenant or pool, with their trend."""

from datetime import timedelta
from typing import Any

from django import forms
from django.http import HttpRequest, HttpResponseBase
from django.shortcuts import render
from django.utils.translation import gettext_lazy as _
from django.views.decorators.http import require_GET

from apps.accounting.services.efficiency import MOST_ROWS, Scope, efficiency
from apps.console.shell.export import as_file, file_format
from apps.console.shell.page_access import page
from apps.quotas.models import Pool, Tenant
from apps.quotas.principals import Principal

# More rows than one reads; the files have them.
SHOWN = 100
GROUPS = [("person", _("Person")), ("claim", _("Claim")), ("tenant", _("Tenant")), ("pool", _("Pool"))]
RANGES = [("day", _("24 hours")), ("week", _("7 days")), ("30days", _("30 days"))]
COLUMNS = [
    "name", "kind", "uid", "tenant", "pool", "owner", "gpu_hours_reserved", "gpu_hours_used", "gpu_hours_unused",
    "percent",
]  # fmt: skip


def _select() -> forms.Select:
    return forms.Select(attrs={"class": "form-select"})


class EfficiencyForm(forms.Form):
    """The group, the range and the part of the platform, in the URL."""

    by = forms.ChoiceField(label=_("Group by"), choices=GROUPS, widget=_select())
    range = forms.ChoiceField(label=_("Range"), choices=RANGES, widget=_select())
    tenant = forms.ModelChoiceField(
        Tenant.objects.none(),
        label=_("Tenant"),
        required=False,
        to_field_name="slug",
        empty_label=_("All"),
        widget=_select(),
    )
    pool = forms.ModelChoiceField(
        Pool.objects.order_by("name"),
        label=_("Pool"),
        required=False,
        to_field_name="name",
        empty_label=_("All"),
        widget=_select(),
    )
    person = forms.CharField(required=False, max_length=200, widget=forms.HiddenInput)

    def __init__(self, *args: Any, principal: Principal, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        field = self.fields["tenant"]
        assert isinstance(field, forms.ModelChoiceField)
        field.queryset = Tenant.objects.visible_to(principal).order_by("slug")


@require_GET
@page
def efficiency_page(request: HttpRequest, principal: Principal) -> HttpResponseBase:
    """Show allocated and used GPU-hours, the most unused first."""
    form = EfficiencyForm({"by": "person", "range": "week"} | request.GET.dict(), principal=principal)
    if not form.is_valid():
        return render(request, "reports/efficiency.html", {"form": form})
    file, values = file_format(request), form.cleaned_data
    report = efficiency(
        principal=principal,
        by=values["by"],
        within=values["range"],
        scope=Scope(values["tenant"], values["pool"], values["person"] or None),
        limit=MOST_ROWS if file else SHOWN,
    )
    if file:
        return as_file(file, f"efficiency-by-{values['by']}", COLUMNS, report["rows"])
    shown = {"form": form, "report": report, "person": values["person"], "shown": SHOWN, "chart": _chart(report)}
    shown["group"] = dict(GROUPS)[values["by"]]
    return render(request, "reports/efficiency.html", shown)


def _chart(report: dict[str, Any]) -> dict[str, Any]:
    """Return the trend as data of a chart that ends with its last span."""
    trend, step = report["trend"], report["step_seconds"]
    end = trend[-1]["at"] + timedelta(seconds=step)
    series = {
        "key": "hours",
        "times": [row["at"].timestamp() for row in trend],
        "reserved": [row["gpu_hours_reserved"] for row in trend],
        "used": [row["gpu_hours_used"] for row in trend],
    }
    window = (end - report["from"]).total_seconds()
    return {
        "now": end.timestamp(), "window_seconds": window, "step_seconds": step, "series": [series], "marks": [],
    }  # fmt: skip
