"""Pages of reservations: booking, one reservation, release."""

import uuid
from datetime import datetime, timedelta
from typing import Any

from django.contrib import messages
from django.db.models import Count
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext, ngettext
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from apps.console.reservations.reservation_forms import BookingForm
from apps.console.shell.page_access import page, wants_fragment
from apps.quotas.principals import Principal
from apps.scheduling.models import Claim, Reservation
from apps.scheduling.models.reservation import OPEN, ReservationState
from apps.scheduling.services.reservations.lifecycle import create_reservation, preview_reservation, release_reservation
from gpucloud.errors import GpucloudError

PER_PAGE = 50


@require_http_methods(["GET", "POST"])
@page
def new_reservation(request: HttpRequest, principal: Principal) -> HttpResponse:
    """Book a window, or preview it."""
    form = BookingForm(posted_window(request), principal=principal, initial={"tenant": request.GET.get("tenant")})
    preview = None
    if request.method == "POST" and form.is_valid():
        try:
            if "book" in request.POST:
                return _book(request, principal, form)
            preview = preview_reservation(principal=principal, **form.service_arguments)
        except GpucloudError as error:
            form.refuse(error)
            preview = error.facts if error.facts.get("windows") else None
    status = 422 if form.is_bound and not form.is_valid() else 200
    shown = {"form": form, "preview": preview, "windows": whole_minutes(preview["windows"]) if preview else []}
    return render(request, "reservations/new.html", shown, status=status)


def whole_minutes(windows: list[dict[str, Any]]) -> list[tuple[datetime, datetime]]:
    """Return free windows as a person types times: from the next whole minute on, equally long."""
    shown = []
    for window in windows:
        begin = (window["start_at"] + timedelta(seconds=59, microseconds=999_999)).replace(second=0, microsecond=0)
        shown.append((begin, begin + (window["end_at"] - window["start_at"])))
    return shown


def _book(request: HttpRequest, principal: Principal, form: BookingForm) -> HttpResponse:
    rows = create_reservation(principal=principal, **form.service_arguments)
    said = ngettext("{0} is booked.", "{0} is booked, {1} times.", len(rows))
    messages.success(request, said.format(rows[0], len(rows)))
    return redirect("reservation", uid=rows[0].uid)


def posted_window(request: HttpRequest) -> Any:
    """Return the posted data, with the times of a chosen free window."""
    if request.method != "POST":
        return None
    data = request.POST.copy()
    begin, _, end = data.get("window", "").partition("/")
    if end:
        data["start_at"], data["end_at"] = begin, end
    return data


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
