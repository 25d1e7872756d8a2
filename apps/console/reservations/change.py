"""The change of a reservation: name, window and rules, with a preview."""

from datetime import datetime
from typing import Any

from django.contrib import messages
from django.db import transaction
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect
from django.urls import reverse
from django.utils import timezone
from django.utils.dateformat import format as date_format
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from apps.console.reservations.reservations import WindowPage, find
from apps.console.shell.form_page import Link
from apps.console.shell.forms import VersionedForm, moment, name_field, number, posted_versions
from apps.reservations.lifecycle import change_reservation
from apps.scheduling.models import Reservation
from apps.scheduling.models.reservation import OPEN, ReservationState

A_DAY, A_WEEK = 24 * 60, 7 * 24 * 60


class ChangeForm(VersionedForm):
    """The changeable fields of a reservation; after its start, not the start. Only changed fields are sent."""

    name = name_field("exam")
    start_at = moment(_("From"))
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

    def __init__(self, data: Any = None, *, row: Reservation) -> None:
        super().__init__(data, initial=initial_of(row))
        if row.state == ReservationState.ACTIVE:
            del self.fields["start_at"]

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


class ChangeReservation(WindowPage):
    """The change of a reservation."""

    template_name, object_type, books = "reservations/change.html", "reservation", "apply"

    def find(self) -> Reservation:
        """Return the reservation."""
        return find(self.principal, self.kwargs["uid"])

    def authorize(self) -> None:
        """Refuse readers who may not change it."""
        self.principal.require_role(self.row.tenant, "member")

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        """Lead back from a reservation that is over."""
        answer = super().dispatch(request, *args, **kwargs)
        if self.row.state in OPEN:
            return answer
        messages.info(request, gettext("{0} is over: book a new one.").format(self.row))
        return redirect("reservation", uid=self.row.uid)

    def form(self, data: Any = None) -> ChangeForm:
        """Return the form with the reservation's values."""
        return ChangeForm(data, row=self.row)

    def act(self, form: ChangeForm) -> Reservation:
        """Change the reservation."""
        versions = posted_versions(self.request)
        return change_reservation(principal=self.principal, reservation=self.row, versions=versions, **form.changes)

    def preview(self, form: ChangeForm) -> dict[str, Any]:
        """Return the GPUs that it would have: change it and roll back."""
        before = {gpu.pk for gpu in self.row.gpus.all()}
        with transaction.atomic():
            gpus = list(self.act(form).gpus.select_related("node").order_by("node__name", "index"))
            transaction.set_rollback(True)
        return {"fits": gpus, "moves": {gpu.pk for gpu in gpus} != before, "nothing": not form.changes}

    def finish(self, form: ChangeForm, done: Reservation) -> HttpResponse:
        """Return to the reservation."""
        self.say(gettext("{0} is changed.").format(self.find()))
        return super().finish(form, done)

    def describe(self) -> str:
        """Return the window in words."""
        times = [date_format(timezone.localtime(at), "D j M H:i") for at in (self.row.start_at, self.row.end_at)]
        return gettext("from {0} to {1}").format(*times)

    def more_context(self) -> dict[str, Any]:
        """Return the reservation as it is now."""
        return {"reservation": self.find()}

    @property
    def heading(self) -> str:
        """The title of the page."""
        return gettext("Change {0}").format(self.find().name)

    @property
    def crumbs(self) -> list[Link]:
        """The reservation."""
        return [(reverse("reservation", args=[self.row.uid]), str(self.row))]
