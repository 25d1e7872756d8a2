"""The audit log: each change, its author and origin, before and after."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from django import forms
from django.http import HttpRequest, HttpResponseBase
from django.shortcuts import render
from django.utils.translation import gettext_lazy as _
from django.views.decorators.http import require_GET

from apps.console.shell.export import as_file, file_format
from apps.console.shell.forms import moment
from apps.console.shell.page_access import page, wants_fragment
from apps.quotas.models import AuditEvent, Tenant
from apps.quotas.principals import Principal
from gpucloud.web.keyset import keyset_page

if TYPE_CHECKING:
    from django_stubs_ext import StrPromise

COLUMNS = [
    "at", "actor", "source_ip", "action", "object_type", "object_id", "tenant", "before", "after", "position", "digest",
]  # fmt: skip


def text(label: "StrPromise", placeholder: "str | StrPromise") -> forms.CharField:
    """Return an optional text field of the filter."""
    widget = forms.TextInput(attrs={"class": "form-control", "autocomplete": "off", "placeholder": placeholder})
    return forms.CharField(label=label, required=False, max_length=255, widget=widget)


class AuditForm(forms.Form):
    """The filter of the audit log, in the URL."""

    tenant = forms.ModelChoiceField(
        Tenant.objects.none(),
        label=_("Tenant"),
        required=False,
        to_field_name="slug",
        empty_label=_("All"),
        widget=forms.Select(attrs={"class": "form-select"}),
    )
    actor = text(_("Who"), "user:anna")
    action = text(_("What"), "quota.set")
    object_id = text(_("Of what"), _("name or uid"))
    since = moment(_("Since"), help_text="", required=False)
    until = moment(_("Until"), help_text="", required=False)

    def __init__(self, *args: Any, principal: Principal, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        field = self.fields["tenant"]
        assert isinstance(field, forms.ModelChoiceField)
        field.queryset = Tenant.objects.visible_to(principal)

    def filter_rows(self, rows: Any) -> Any:
        """Return the rows that match the filter; an invalid field does not filter."""
        self.is_valid()
        wanted = self.cleaned_data
        conditions = {
            "tenant": wanted.get("tenant"),
            "actor__startswith": wanted.get("actor"),
            "action__startswith": wanted.get("action"),
            "object_id": wanted.get("object_id"),
            "at__gte": wanted.get("since"),
            "at__lt": wanted.get("until"),
        }
        return rows.filter(**{name: value for name, value in conditions.items() if value})


@require_GET
@page
def audit_log(request: HttpRequest, principal: Principal) -> HttpResponseBase:
    """Show the audit log: everything to an operator, the tenant's events to its admin."""
    form = AuditForm(request.GET, principal=principal)
    rows = form.filter_rows(AuditEvent.objects.visible_to(principal).select_related("tenant").order_by("-pk"))
    if file := file_format(request):
        return as_file(file, "audit", COLUMNS, _facts(rows))
    part = keyset_page(rows, request.GET)
    events = [(event, changes(event)) for event in part.rows]
    shown = {"form": form, "events": events, "part": part, "filtered": form.has_changed()}
    return render(request, "audit/_rows.html" if wants_fragment(request) else "audit/log.html", shown)


def _facts(rows: Any) -> Iterator[dict[str, Any]]:
    for event in rows.iterator():
        facts = {name: getattr(event, name) for name in COLUMNS}
        yield facts | {"tenant": event.tenant and event.tenant.slug}


def changes(event: AuditEvent) -> list[tuple[str, Any, Any]]:
    """Return name, before, after of each difference; all fields of a created object."""
    before, after = event.before or {}, event.after or {}
    names = [*after, *(name for name in before if name not in after)]
    return [(name, before.get(name), after.get(name)) for name in names if before.get(name) != after.get(name)]
