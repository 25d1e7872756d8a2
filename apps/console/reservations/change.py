"""The change of a reservation: name, window and rules, with a preview."""

import uuid
from datetime import datetime
from typing import Any

from django import forms
from django.contrib import messages
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _
from django.views.decorators.http import require_http_methods

from apps.console.reservations.reservations import find, posted_window, whole_minutes
from apps.console.shell.forms import ServiceForm, moment, number, posted_versions
from apps.console.shell.page_access import page
from apps.quotas.models import AuditEvent
from apps.quotas.principals import Principal
from apps.scheduling.models import Reservation
from apps.scheduling.models.reservation import OPEN, ReservationState
from apps.scheduling.services.reservations.lifecycle import change_reservation
from gpucloud.errors import GpucloudError, PreconditionFailed

A_DAY, A_WEEK = 24 * 60, 7 * 24 * 60


class ChangeForm(ServiceForm):
    """The changeable fields of a reservation; after its start, not the start. Only changed fields are sent."""

    name = forms.CharField(
        label=_("Name"),
        max_length=200,
        widget=forms.TextInput(attrs={"class": "form-control", "autocomplete": "off"}),
    )
    start_at = moment(_("From"), help_text=_("Times are in UTC."))
    end_at = moment(_("To"), help_text=_("Claims in it end with it."))
    grace_minutes = number(
        _("Given back unclaimed after"),
        most=A_WEEK,
        required=False,
        help_text=_("Minutes after its beginning, when nobody has made a claim in it. Empty: kept."),
    )
    idle_percent = number(
        _("Idle below"),
        most=100,
        required=False,
        help_text=_("Percent of its core; reported idle when its claims use less. Empty: not watched."),
    )
    idle_minutes = number(_("Idle for"), most=A_DAY, help_text=_("Minutes."))
    version = forms.CharField(required=False, widget=forms.HiddenInput)

    def __init__(self, data: Any = None, *, row: Reservation) -> None:
        super().__init__(data, initial=initial_of(row))
        if row.state == ReservationState.ACTIVE:
            del self.fields["start_at"]

    @property
    def fields_shown(self) -> list[forms.BoundField]:
        """The visible fields."""
        return self.visible_fields()

    @property
    def changes(self) -> dict[str, Any]:
        """The changed fields, for the service."""
        values = {name: self.cleaned_data[name] for name in self.changed_data if name != "version"}
        for name in ("grace", "idle"):
            if f"{name}_minutes" in values:
                minutes = values.pop(f"{name}_minutes")
                values[f"{name}_seconds"] = None if minutes is None else 60 * minutes
        return values

    def clean(self) -> dict[str, Any]:
        """Apply the API's own rule."""
        values = super().clean() or {}
        begin, end = values.get("start_at"), values.get("end_at")
        if begin and end and end <= begin:
            self.add_error("end_at", _("Must be after its beginning."))
        return values


def initial_of(row: Reservation) -> dict[str, Any]:
    """Return the present values, in whole minutes, as people type them."""
    return {
        "name": row.name,
        "start_at": _minute(row.start_at),
        "end_at": _minute(row.end_at),
        "grace_minutes": None if row.grace_seconds is None else max(1, row.grace_seconds // 60),
        "idle_percent": row.idle_percent,
        "idle_minutes": max(1, row.idle_seconds // 60),
        "version": row.version,
    }


def _minute(at: datetime) -> datetime:
    return at.replace(second=0, microsecond=0)


@require_http_methods(["GET", "POST"])
@page
def change(request: HttpRequest, principal: Principal, uid: uuid.UUID) -> HttpResponse:
    """Show the form. A post without `apply` only previews."""
    row = find(principal, uid)
    principal.require_role(row.tenant, "member")
    if row.state not in OPEN:
        messages.info(request, gettext("{0} is over: book a new one.").format(row))
        return redirect("reservation", uid=uid)
    form = ChangeForm(posted_window(request), row=row)
    shown: dict[str, Any] = {}
    if request.method == "POST" and form.is_valid():
        shown, done = _handle_post(request, principal, row, form)
        if done:
            messages.success(request, gettext("{0} is changed.").format(find(principal, uid)))
            return redirect("reservation", uid=uid)
    refused = form.is_bound and not form.is_valid()
    shown |= {"form": form, "reservation": find(principal, uid)}
    return render(request, "reservations/change.html", shown, status=422 if refused else 200)


def _handle_post(
    request: HttpRequest, principal: Principal, row: Reservation, form: ChangeForm
) -> tuple[dict[str, Any], bool]:
    """Return the context beside the form, and True if the change was made."""
    apply, before = "apply" in request.POST, {gpu.pk for gpu in row.gpus.all()}
    try:
        with transaction.atomic():
            changed = change_reservation(
                principal=principal, reservation=row, versions=posted_versions(request), **form.changes
            )
            gpus = list(changed.gpus.select_related("node").order_by("node__name", "index"))
            transaction.set_rollback(not apply)
    except PreconditionFailed:
        return _resolve_conflict(row, form), False
    except GpucloudError as error:
        form.refuse(error)
        windows = error.facts.get("windows")
        return ({"preview": error.facts, "windows": whole_minutes(windows)} if windows else {}), False
    return {"fits": gpus, "moves": {gpu.pk for gpu in gpus} != before, "nothing": not form.changes}, apply


def _resolve_conflict(row: Reservation, form: ChangeForm) -> dict[str, Any]:
    """Return the conflicting change. The form keeps its values; sent again, it applies to the new version."""
    row.refresh_from_db()
    form.data = {**dict(form.data.items()), "version": str(row.version)}
    events = AuditEvent.objects.filter(object_type="reservation", object_id=str(row.uid)).order_by("-pk")
    return {"conflict": events.first()}
