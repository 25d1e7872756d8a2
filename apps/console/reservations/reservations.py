"""Pages of reservations: booking, one reservation, release."""

import uuid
from datetime import datetime, timedelta
from typing import Any

from django.contrib import messages
from django.db.models import Count
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect, render
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _
from django.views.decorators.http import require_GET, require_POST

from apps.console.reservations.reservation_forms import BookingForm
from apps.console.shell.form_page import FormPage
from apps.console.shell.page_access import page, wants_fragment
from apps.quotas.principals import Principal
from apps.reservations.lifecycle import create_reservation, preview_reservation, release_reservation
from apps.scheduling.models import Claim, Reservation
from apps.scheduling.models.reservation import OPEN, ReservationState
from gpucloud.errors import GpucloudError

PER_PAGE = 50


class WindowPage(FormPage):
    """A form with a window: a post previews it unless it has `books`, and a free window can be chosen."""

    preview_template = "reservations/_preview.html"
    # The name of the button that does what is previewed.
    books = "book"

    @property
    def wants_preview(self) -> bool:
        """True unless the reader pressed the button: Enter and the choice of a window only look."""
        return self.books not in self.request.POST

    def post(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        """Take a chosen free window for the times."""
        begin, _slash, end = request.POST.get("window", "").partition("/")
        if end:
            chosen = request.POST.copy()
            chosen["start_at"], chosen["end_at"] = begin, end
            request.POST = chosen  # type: ignore[assignment]
        return super().post(request, *args, **kwargs)

    def refused(self, form: Any, error: GpucloudError) -> dict[str, Any]:
        """Return the free windows, if the refusal has any."""
        windows = error.facts.get("windows")
        return {"preview": error.facts, "windows": whole_minutes(windows)} if windows else {}


class NewReservation(WindowPage):
    """A new reservation."""

    template_name, title, form_class = "reservations/new.html", _("New reservation"), BookingForm
    subtitle = _("Charged to the tenant’s quota from its beginning, used or not")
    parent = ("reservations", _("Reservations"))

    def form(self, data: Any = None) -> BookingForm:
        """Return the form with the tenant of the URL."""
        return BookingForm(data, principal=self.principal, initial={"tenant": self.request.GET.get("tenant")})

    def act(self, form: BookingForm) -> list[Reservation]:
        """Book the windows."""
        return create_reservation(principal=self.principal, **form.service_arguments)

    def preview(self, form: BookingForm) -> dict[str, Any]:
        """Return the outcome that booking would have."""
        effect = preview_reservation(principal=self.principal, **form.service_arguments)
        return {"preview": effect, "windows": whole_minutes(effect["windows"])}

    def finish(self, form: BookingForm, done: list[Reservation]) -> HttpResponse:
        """Lead to the first reservation."""
        said = ngettext("{0} is booked.", "{0} is booked, {1} times.", len(done))
        self.say(said.format(done[0], len(done)))
        return redirect("reservation", uid=done[0].uid)


def whole_minutes(windows: list[dict[str, Any]]) -> list[tuple[datetime, datetime]]:
    """Return free windows as a person types times: from the next whole minute on, equally long."""
    shown = []
    for window in windows:
        begin = (window["start_at"] + timedelta(seconds=59, microseconds=999_999)).replace(second=0, microsecond=0)
        shown.append((begin, begin + (window["end_at"] - window["start_at"])))
    return shown


@require_GET
@page
def reservation_detail(request: HttpRequest, principal: Principal, uid: uuid.UUID) -> HttpResponse:
    """Show one reservation and its claims."""
    row = find(principal, uid)
    claims = Claim.objects.visible_to(principal).filter(reservation=row).select_related("tenant").order_by("-pk")
    shown = {
        "reservation": row,
        "claims": claims[:PER_PAGE],
        "may_change": principal.is_operator or row.tenant_id in principal.with_role("member"),
        "is_open": row.state in OPEN,
        "unclaimed_until": _unclaimed_until(row),
    }
    template = "reservations/_live.html" if wants_fragment(request) else "reservations/reservation.html"
    return render(request, template, shown)


@require_POST
@page
def give_back(request: HttpRequest, principal: Principal, uid: uuid.UUID) -> HttpResponse:
    """Release the reservation."""
    row = release_reservation(principal=principal, reservation=find(principal, uid))
    messages.success(request, gettext("{0} is released: its capacity is free, and claims in it end.").format(row))
    return redirect("reservation", uid=uid)


def with_claims(rows: Any) -> Any:
    """Return the reservations with `claims_made`, tenant, pool and GPUs."""
    rows = rows.select_related("tenant", "pool").prefetch_related("gpus__node")
    return rows.annotate(claims_made=Count("claims"))


def find(principal: Principal, uid: uuid.UUID) -> Reservation:
    row: Reservation | None = with_claims(Reservation.objects.visible_to(principal)).filter(uid=uid).first()
    if row is None:
        raise Http404("There is no such reservation that you may see.")
    return row


def _unclaimed_until(row: Reservation) -> datetime | None:
    """Return when it releases itself unless a claim starts; None if it does not."""
    unclaimed = row.state == ReservationState.ACTIVE and row.claimed_at is None and row.started_at is not None
    if not unclaimed or row.grace_seconds is None or row.started_at is None:
        return None
    return row.started_at + timedelta(seconds=row.grace_seconds)
