"""Views of /reservations/ and /pools/{name}/calendar/."""

from datetime import UTC, datetime, timedelta
from typing import Any

from django.utils import timezone
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from apps.quotas.api.methods import changes, lists, order
from apps.quotas.api.views import ApiView, ListMixin
from apps.quotas.idempotency import idempotent
from apps.quotas.models import Pool, Tenant
from apps.reservations.api import serializers as shapes
from apps.reservations.calendar import pool_calendar
from apps.reservations.lifecycle import (
    change_reservation,
    create_reservation,
    preview_reservation,
    release_reservation,
)
from apps.scheduling.api.claims import DRY_RUN, default_pool, dry_run
from apps.scheduling.models import Reservation
from gpucloud.api import etags
from gpucloud.api.filters import Named, filters_of

A_WEEK = timedelta(days=7)
LAST_WEEK = datetime.max.replace(tzinfo=UTC) - A_WEEK


class ReservationView(ApiView):
    """The common part of reservation views. A principal that may create claims may reserve."""

    serializer_class: Any = shapes.ReservationSerializer
    lookup_key = "uid"
    read_scope, write_scope = "claims:read", "claims:write"

    queryset = Reservation.objects.select_related("tenant", "pool").prefetch_related("gpus__node")
    answer_class, address = shapes.ReservationSerializer, "/reservations/{row.uid}/"


class ReservationList(ReservationView, ListMixin):
    """Reservations: pieces of GPUs for windows of time."""

    filterset_class = filters_of(
        Reservation,
        "state",
        "name",
        "series",
        tenant=Named(Tenant.objects, "slug"),
        pool=Named(Pool.objects, "name"),
        gpu="gpus__uuid",
    )
    change_parameters = {"POST": frozenset({"dry_run"})}
    get = lists("List reservations, newest first; those that are over stay as history.")

    @extend_schema(
        parameters=[DRY_RUN], responses={201: shapes.ReservationSerializer, 200: shapes.BookingPreviewSerializer}
    )
    @idempotent
    def post(self, request: Request) -> Response:
        """Book a window. If it is taken: 409 with the obstacles and the nearest free windows."""
        values = self.parse_body(request)
        values["pool"] = values["pool"] or default_pool()
        if dry_run(request):
            preview = preview_reservation(principal=self.principal, **values)
            return Response(shapes.BookingPreviewSerializer(preview).data)
        return self.respond(create_reservation(principal=self.principal, **values)[0], status=201)


class ReservationDetail(ReservationView):
    """One reservation."""

    serializer_classes = {"PATCH": shapes.RulesSerializer}

    def get(self, request: Request, uid: str) -> Response:
        """Show a reservation."""
        return self.respond(self.find(uid))

    patch = changes(
        change_reservation, "reservation", "Change its name, its window (once it has begun, its end) or its rules."
    )

    @extend_schema(responses={200: shapes.ReservationSerializer})
    def delete(self, request: Request, uid: str) -> Response:
        """Release it, with the claims in it; may be repeated."""
        row, versions = self.find(uid), etags.if_match(request)
        return self.respond(release_reservation(principal=self.principal, reservation=row, versions=versions))


ReservationRelease = order(
    ReservationView,
    release_reservation,
    "reservation",
    "Release it before its end, with the claims in it; may be repeated.",
)


class PoolCalendar(ApiView):
    """The calendar of a pool."""

    serializer_class: Any = shapes.CalendarSerializer
    queryset = Pool.objects.all()
    lookup_key = "name"
    read_scope = "nodes:read"
    filter_backends = []
    pagination_class = None

    @extend_schema(parameters=shapes.CalendarQuestion.parameters())
    def get(self, request: Request, name: str) -> Response:
        """Show each GPU of the pool with its holds over time; their holders only if they are the caller's."""
        pool, values = self.find(name), shapes.CalendarQuestion.read(request)
        begin = values.get("from") or timezone.now()
        found = pool_calendar(
            principal=self.principal,
            pool=pool,
            begin=begin,
            end=values.get("to") or min(begin, LAST_WEEK) + A_WEEK,
            node=values.get("node"),
        )
        return Response(self.get_serializer(found).data)
