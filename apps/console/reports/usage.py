"""GPU-hours of a period by tenant, organisation or person, pool and model, their cost, their trend and a forecast."""

from collections.abc import Iterable
from datetime import UTC, datetime, time, timedelta
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from django import forms
from django.http import HttpRequest, HttpResponseBase
from django.shortcuts import render
from django.utils import timezone
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _
from django.views.decorators.http import require_GET

from apps.accounting.services.focus import COLUMNS as COLUMNS_OF_FOCUS
from apps.accounting.services.focus import focus_page
from apps.accounting.services.reports import usage_report
from apps.console.shell.export import MOST_ROWS, as_file, file_format
from apps.console.shell.page_access import page
from apps.quotas.models import Organisation, Tenant
from apps.quotas.principals import Principal
from apps.quotas.services.organisation_quotas import tenants_below
from gpucloud.errors import GpucloudError

if TYPE_CHECKING:
    from django_stubs_ext import StrPromise

COLUMNS = [
    "organisation", "tenant", "pool", "gpu_model", "owner", "gpu_hours_reserved", "gpu_hours_used", "cost_reserved",
    "cost_used", "gpu_hours_unpriced",
]  # fmt: skip


def day(label: "StrPromise") -> forms.DateField:
    """Return a field for a day, in UTC."""
    widget = forms.DateInput(attrs={"class": "form-control", "type": "date"}, format="%Y-%m-%d")
    return forms.DateField(label=label, widget=widget)


class PeriodForm(forms.Form):
    """The rows, the tenant and the period of the report, in the URL."""

    by = forms.ChoiceField(
        label=_("Group by"),
        choices=[("model", _("Tenant")), ("organisation", _("Organisation")), ("person", _("Person"))],
        widget=forms.Select(attrs={"class": "form-select"}),
    )

    tenant = forms.ModelChoiceField(
        Tenant.objects.none(),
        label=_("Tenant"),
        required=False,
        to_field_name="slug",
        empty_label=_("All"),
        widget=forms.Select(attrs={"class": "form-select"}),
    )
    organisation = forms.ModelChoiceField(
        Organisation.objects.none(),
        label=_("Organisation"),
        required=False,
        to_field_name="slug",
        empty_label=_("All"),
        widget=forms.Select(attrs={"class": "form-select"}),
    )
    begin = day(_("From"))
    end = day(_("To"))

    def __init__(self, *args: Any, principal: Principal, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for name, model in (("tenant", Tenant), ("organisation", Organisation)):
            field = self.fields[name]
            assert isinstance(field, forms.ModelChoiceField)
            field.queryset = model.objects.visible_to(principal)
        if not Organisation.objects.exists():
            del self.fields["organisation"]

    def clean(self) -> dict[str, Any]:
        """Refuse a tenant beside an organisation, as the API does."""
        if self.cleaned_data.get("tenant") and self.cleaned_data.get("organisation"):
            self.add_error("organisation", _("Choose a tenant or an organisation, not both."))
        return self.cleaned_data

    def tenants(self, principal: Principal) -> Iterable[Tenant]:
        """Return the tenants that were chosen: one, those below an organisation, or all that the reader sees."""
        visible, organisation = Tenant.objects.visible_to(principal), self.cleaned_data.get("organisation")
        if self.cleaned_data["tenant"]:
            return [self.cleaned_data["tenant"]]
        return visible.filter(pk__in=tenants_below(organisation).order_by().values("pk")) if organisation else visible


@require_GET
@page
def usage(request: HttpRequest, principal: Principal) -> HttpResponseBase:
    """Show the report of this month, or of the period in the URL."""
    today = timezone.now().date()
    period = {"by": "model", "begin": today.replace(day=1).isoformat(), "end": today.isoformat()}
    form = PeriodForm(period | request.GET.dict(), principal=principal)
    report: dict[str, Any] | None = None
    tenants: Iterable[Tenant] = ()
    if form.is_valid():
        values = form.cleaned_data
        tenants = form.tenants(principal)
        try:
            end = _midnight(values["end"]) + timedelta(days=1)
            report = usage_report(tenants=tenants, begin=_midnight(values["begin"]), end=end, by=values["by"])
        except (GpucloudError, OverflowError) as error:
            form.add_error(
                "end", gettext(getattr(error, "detail", "")) or gettext("The date is too far in the future.")
            )
    if report is not None and request.GET.get("format") == "focus":
        # Many claims of years are for the API and the command, which read them page by page.
        charges = focus_page(tenants=tenants, begin=report["from"], end=report["to"], limit=MOST_ROWS)
        return as_file("csv", "focus", list(COLUMNS_OF_FOCUS), charges["rows"])
    if report is not None and (file := file_format(request)):
        return as_file(file, "gpu-hours", COLUMNS, report["rows"])
    shown = {"form": form, "report": report}
    if report is not None:
        by = form.cleaned_data["by"]
        shown |= {"by_person": by == "person", "by_organisation": by == "organisation", "chart": _chart(report)}
    return render(request, "reports/usage.html", shown)


def _chart(report: dict[str, Any]) -> dict[str, Any]:
    """Return the sums since the beginning as data of a chart that ends with the forecast, or with the period."""
    begin, forecast, trend = report["from"], report["forecast"], report["trend"]
    ends = [*(day["at"] for day in trend[1:]), min(report["to"], timezone.now())]
    reserved, used = (
        [0.0, *accumulate(float(day[name]) for day in trend)] for name in ("gpu_hours_reserved", "gpu_hours_used")
    )
    times: list[datetime] = [begin, *ends]
    expected: list[float | None] = [None] * len(reserved)
    if forecast is not None:
        times.append(forecast["to"])
        expected = [*expected[1:], reserved[-1], float(forecast["gpu_hours_reserved"])]
    # The other lines end where the forecast goes on.
    rest = [None] * (len(times) - len(reserved))
    series = {
        "key": "period", "times": [at.timestamp() for at in times], "reserved": [*reserved, *rest],
        "used": [*used, *rest], "forecast": expected,
    }  # fmt: skip
    window = (times[-1] - begin).total_seconds()
    return {"now": times[-1].timestamp(), "window_seconds": window, "series": [series], "marks": []}


def _midnight(of: Any) -> datetime:
    return datetime.combine(of, time(), tzinfo=UTC)
