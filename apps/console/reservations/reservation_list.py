"""The list of reservations under a pool's week."""

from datetime import datetime, timedelta
from typing import Any

import django_filters
from django import forms
from django.db.models import Exists, OuterRef, Q
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from apps.console.reservations.reservations import with_claims
from apps.console.reservations.week import A_WEEK, monday, position, rows_of
from apps.console.shell.export import Row, facts_of
from apps.console.shell.lists.columns import SavedView, column, named, number
from apps.console.shell.lists.filters import Choice, Flag, ListFilter, Search, Text, made_by, pools, tenants
from apps.console.shell.lists.views import ListPage
from apps.nodes.models import Gpu
from apps.quotas.models import Pool
from apps.quotas.models.pool import DEFAULT
from apps.reservations.calendar import NodeMissing, pool_calendar
from apps.scheduling.models import Reservation
from apps.scheduling.models.reservation import OPEN, ReservationState
from gpucloud.web.badges import badge
from gpucloud.web.keyset import Key

# More rows than one reads; the choice of a node shows the others.
MOST_ROWS = 64
# A line at the beginning of each day, as a path over a row that is a hundred wide and high.
MIDNIGHTS = "".join(f"M{100 * day / 7:.3f} 0V100" for day in range(7))


class Week(django_filters.Filter):
    """The week above the list; it does not filter the rows."""

    @property
    def field(self) -> Any:
        """The field for a day of the week."""
        widget = forms.DateInput(attrs={"class": "form-control", "type": "date"}, format="%Y-%m-%d")
        return forms.DateField(label=_("Week of"), required=False, widget=widget)

    def filter(self, rows: Any, value: Any) -> Any:
        """Return all rows."""
        return rows


class Node(Text):
    """The reservations on a node."""

    def filter(self, rows: Any, value: Any) -> Any:
        """Return the reservations that have a GPU of the node."""
        here = Gpu.objects.filter(reservations=OuterRef("pk"), node__name=value)
        return rows.filter(Exists(here)) if value else rows


class ReservationFilter(ListFilter):
    """The filters of reservations; pool and node choose the week, too."""

    folded = ("q", "tenant", "state", "owner", "mine")
    pool = pools()
    week = Week()
    node = Node(_("Node"), "node", _("all"))
    q = Search("name", "uid", placeholder=_("name or uid"))
    tenant = tenants()
    state = Choice(
        _("State"),
        {one.value: (badge(one).label, Q(state=one)) for one in ReservationState}
        | {"idle": (badge("idle").label, Q(state__in=OPEN, idle_since__isnull=False)), "all": (_("All"), Q())},
        empty=_("Booked and active"),
        otherwise=Q(state__in=OPEN),
    )
    owner = Text(_("Owner"), "created_by__icontains", "user:anna")
    mine = Flag(_("Mine"), made_by)


class ReservationList(ListPage):
    """A pool's week, and the visible reservations, the soonest first."""

    model, filters, template_name = Reservation, ReservationFilter, "reservations/list.html"
    title = _("Reservations")
    subtitle = _("Shares of GPUs reserved for a window of time, and the pool’s week")
    refresh_seconds = 30
    first = (Key("start_at"),)
    columns = [
        named(_("Reservation")),
        column(_("State"), "state", "state", "start_at"),
        column(_("Window"), "start", "start_at"),
        column(_("Share"), css="wide"),
        column(_("Where"), css="wide"),
        column(_("Owner"), "owner", "created_by", css="wide"),
        number(_("Claims"), css="wide num"),
    ]
    views = [
        SavedView(_("Booked and active")),
        SavedView(_("Idle"), "state=idle"),
        SavedView(_("Mine"), "mine=1"),
        SavedView(_("All"), "state=all"),
    ]
    file = ("reservations", [
        "uid", "series", "name", "tenant", "pool", "state", "start_at", "end_at", "gpu_count", "core_request",
        "memory_mib", "gpus", "claims_made", "idle_since", "created_by",
    ])  # fmt: skip

    def with_details(self, rows: Any) -> Any:
        """Add tenant, pool, GPUs and claims."""
        return with_claims(rows)

    def facts(self, row: Any) -> Row:
        """Return the reservation with the names of tenant, pool and GPUs."""
        gpus = [f"{gpu.node.name}/{gpu.index}" for gpu in row.gpus.all()]
        return facts_of(row, self.file[1], tenant=row.tenant.slug, pool=row.pool.name, gpus=gpus)

    def more_context(self) -> dict[str, Any]:
        """Return the week of the chosen pool, else of the default one."""
        chosen = self.filterset.form.cleaned_data
        pool = chosen.get("pool") or Pool.objects.filter(name=DEFAULT).first() or Pool.objects.first()
        day = chosen.get("week")
        # The calendar needs a week before and after.
        if day is None or not 1970 <= day.year < 9999:
            day = timezone.localtime().date()
        begin = monday(timezone.make_aware(datetime(day.year, day.month, day.day)))  # noqa: DTZ001
        shown = {"pool": pool, "begin": begin, "days": _days(begin), "midnights": MIDNIGHTS, "now_at": _now_at(begin)}
        shown |= {"earlier": begin - A_WEEK, "later": begin + A_WEEK, "this_week": monday(timezone.now())}
        return shown | (self._week(pool, begin, chosen.get("node") or "") if pool else {})

    def _week(self, pool: Pool, begin: datetime, node: str) -> dict[str, Any]:
        """Return the GPUs of the week; none for an unknown node."""
        try:
            found = pool_calendar(
                principal=self.principal, pool=pool, begin=begin, end=begin + A_WEEK, node=node or None, most=MOST_ROWS
            )
        except NodeMissing:
            return {"week": [], "left_out": 0}
        return {"week": rows_of(found["gpus"], begin), "left_out": found["gpus_left_out"]}


def _days(begin: datetime) -> list[tuple[datetime, bool]]:
    """Return each day of the week, and True for today."""
    today, days = timezone.localtime().date(), [begin + timedelta(days=number) for number in range(7)]
    return [(day, day.date() == today) for day in days]


def _now_at(begin: datetime) -> float | None:
    """Return the present's position in percent of the week; None outside of it."""
    at = position(timezone.now(), begin)
    return at if 0 <= at <= 100 else None
