"""Pages of reservations: a pool's week, the reader's reservations, booking, release."""

import uuid
from datetime import datetime, timedelta
from typing import Any

from django.contrib import messages
from django.core.paginator import Paginator
from django.db.models import Count
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect, render
from django.utils import timezone
from django.utils.translation import gettext, ngettext
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from apps.console.reservations.reservation_forms import BookingForm, WeekForm
from apps.console.reservations.week import A_WEEK, monday, rows_of
from apps.console.shell.export import Row, as_file, facts_of, file_format
from apps.console.shell.page_access import page, wants_fragment
from apps.quotas.models import Pool
from apps.quotas.principals import Principal
from apps.scheduling.models import Claim, Reservation
from apps.scheduling.models.reservation import OPEN, ReservationState
from apps.scheduling.services.reservations.calendar import NodeMissing, pool_calendar
from apps.scheduling.services.reservations.lifecycle import create_reservation, preview_reservation, release_reservation
from gpucloud.errors import GpucloudError

PER_PAGE = 50
COLUMNS = [
    "uid", "series", "name", "tenant", "pool", "state", "start_at", "end_at", "gpu_count", "core_request", "memory_mib",
    "gpus", "claims_made", "idle_since", "created_by",
]  # fmt: skip
# More rows than one reads; the choice of a node shows the others.
MOST_ROWS = 64
# A line at the beginning of each day, as a path over a row that is a hundred wide and high.
MIDNIGHTS = "".join(f"M{100 * day / 7:.3f} 0V100" for day in range(7))


@require_GET
@page
def reservation_list(request: HttpRequest, principal: Principal) -> HttpResponseBase:
    """Show a pool's week, and the visible reservations."""
    mine = _visible(principal).filter(state__in=OPEN).order_by("start_at", "pk")
    if file := file_format(request):
        return as_file(file, "reservations", COLUMNS, map(_facts, mine))
    pool, day, node = WeekForm(request.GET).choose()
    begin = monday(day or timezone.now())
    form = WeekForm(initial={"pool": pool and pool.name, "week": day and begin.date(), "node": node})
    shown: dict[str, Any] = {"form": form, "pool": pool, "begin": begin, "days": _days(begin), "midnights": MIDNIGHTS}
    if pool is not None:
        shown |= _week(principal, pool, begin, node)
    shown |= {"part": Paginator(mine, PER_PAGE).get_page(request.GET.get("page")), "now_at": _now_at(begin)}
    shown |= {"earlier": begin - A_WEEK, "later": begin + A_WEEK, "this_week": monday(timezone.now())}
    return render(request, "reservations/_rows.html" if wants_fragment(request) else "reservations/list.html", shown)


def _facts(row: Any) -> Row:
    gpus = [f"{gpu.node.name}/{gpu.index}" for gpu in row.gpus.all()]
    return facts_of(row, COLUMNS, tenant=row.tenant.slug, pool=row.pool.name, gpus=gpus)


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


def _visible(principal: Principal) -> Any:
    rows = Reservation.objects.visible_to(principal).select_related("tenant", "pool").prefetch_related("gpus__node")
    return rows.annotate(claims_made=Count("claims"))


def find(principal: Principal, uid: uuid.UUID) -> Reservation:
    row: Reservation | None = _visible(principal).filter(uid=uid).first()
    if row is None:
        raise Http404("There is no such reservation that you may see.")
    return row


def _unclaimed_until(row: Reservation) -> datetime | None:
    """Return when it releases itself unless a claim starts; None if it does not."""
    unclaimed = row.state == ReservationState.ACTIVE and row.claimed_at is None and row.started_at is not None
    if not unclaimed or row.grace_seconds is None or row.started_at is None:
        return None
    return row.started_at + timedelta(seconds=row.grace_seconds)


def _week(principal: Principal, pool: Pool, begin: datetime, node: str) -> dict[str, Any]:
    """Return the rows; none for an unknown node."""
    try:
        found = pool_calendar(
            principal=principal, pool=pool, begin=begin, end=begin + A_WEEK, node=node or None, most=MOST_ROWS
        )
    except NodeMissing:
        return {"rows": [], "left_out": 0}
    return {"rows": rows_of(found["gpus"], begin), "left_out": found["gpus_left_out"]}


def _days(begin: datetime) -> list[tuple[datetime, bool]]:
    """Return each day of the week, and True for today."""
    today, days = timezone.localtime().date(), [begin + timedelta(days=number) for number in range(7)]
    return [(day, day.date() == today) for day in days]


def _now_at(begin: datetime) -> float | None:
    """Return the present's position in percent of the week; None outside of it."""
    at = 100 * (timezone.now() - begin) / A_WEEK
    return at if 0 <= at <= 100 else None
