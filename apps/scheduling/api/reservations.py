"""Views of /reservations/ and /pools/{name}/calendar/."""

from datetime import UTC, datetime, timedelta
from typing import Any

from django.utils import timezone
from django_filters import rest_framework as filters
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from apps.quotas.api.views import ApiView, ListMixin
from apps.quotas.idempotency import idempotent
from apps.quotas.models import Pool, Tenant
from apps.scheduling.api import reservation_serializers as shapes
from apps.scheduling.api.claims import DRY_RUN, default_pool, dry_run
from apps.scheduling.models import Reservation
from apps.scheduling.services.reservations.calendar import pool_calendar
from apps.scheduling.services.reservations.lifecycle import (
    change_reservation,
    create_reservation,
    preview_reservation,
    release_reservation,
)
from gpucloud.api import etags
from gpucloud.api.filters import Changed, Named

A_WEEK = timedelta(days=7)
LAST_WEEK = datetime.max.replace(tzinfo=UTC) - A_WEEK


class ReservationFilter(Changed):
    """Reservations by tenant, pool, GPU, state, name, series and time of change."""

    tenant = Named(Tenant.objects, "slug")
    pool = Named(Pool.objects, "name")
    gpu = filters.CharFilter(field_name="gpus__uuid")

    class Meta:
        model = Reservation
        fields = ["tenant", "pool", "gpu", "state", "name", "series", "updated_since"]


class ReservationView(ApiView):
    """The common part of reservation views. A principal that may create claims may reserve."""

    serializer_class: Any = shapes.ReservationSerializer
    lookup_key = "uid"
    read_scope, write_scope = "claims:read", "claims:write"

    def get_queryset(self) -> Any:
        """Return the reservations that the caller may see, with the rows that an answer shows."""
        rows = Reservation.objects.visible_to(self.principal).select_related("tenant", "pool")
        return rows.prefetch_related("gpus__node")

    def respond(self, row: Reservation, *, status: int = 200) -> Response:
        """Return a response with the reservation as it is now."""
        headers = {"ETag": etags.etag(row.version), "Location": f"/api/v1/reservations/{row.uid}/"}
        body = shapes.ReservationSerializer(row, context=self.get_serializer_context()).data
        return Response(body, status=status, headers=headers)

    def release(self, request: Request, uid: str) -> Response:
        """Release the reservation, and return a response with it."""
        versions = etags.if_match(request)
        return self.respond(
            release_reservation(principal=self.principal, reservation=self.find(uid), versions=versions)
        )


class ReservationList(ReservationView, ListMixin):
    """Reservations: pieces of GPUs for windows of time."""

    filterset_class = ReservationFilter
    change_parameters = {"POST": frozenset({"dry_run"})}

    def get(self, request: Request) -> Response:
        """List reservations, newest first; those that are over stay as history."""
        return self.list_page(self.get_queryset())

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

    def get_serializer_class(self) -> Any:
        """Return the serializer: a change has only the fields that can be changed."""
        return shapes.RulesSerializer if self.request.method == "PATCH" else super().get_serializer_class()

    def get(self, request: Request, uid: str) -> Response:
        """Show a reservation."""
        return self.respond(self.find(uid))

    @extend_schema(responses={200: shapes.ReservationSerializer})
    def patch(self, request: Request, uid: str) -> Response:
        """Change its name, its window (once it has begun, its end) or its rules."""
        row, values, versions = self.find(uid), self.parse_body(request, partial=True), etags.if_match(request)
        return self.respond(change_reservation(principal=self.principal, reservation=row, versions=versions, **values))

    @extend_schema(responses={200: shapes.ReservationSerializer})
    def delete(self, request: Request, uid: str) -> Response:
        """Release it, with the claims in it; may be repeated."""
        return self.release(request, uid)


class ReservationRelease(ReservationView):
    """Release by POST, for clients that cannot send DELETE."""

    @extend_schema(request=None, responses={200: shapes.ReservationSerializer})
    @idempotent
    def post(self, request: Request, uid: str) -> Response:
        """Release it before its end, with the claims in it; may be repeated."""
        self.without_body(request)
        return self.release(request, uid)


PERIOD = [
    OpenApiParameter("from", OpenApiTypes.DATETIME, description="Now, unless given."),
    OpenApiParameter("to", OpenApiTypes.DATETIME, description="A week after `from`, unless given; 92 days at most."),
    OpenApiParameter("node", OpenApiTypes.STR, description="Only this node's GPUs."),
]


class PoolCalendar(ApiView):
    """The calendar of a pool."""

    serializer_class: Any = shapes.CalendarSerializer
    queryset = Pool.objects.all()
    lookup_key = "name"
    read_scope = "nodes:read"
    filter_backends = []
    pagination_class = None

    @extend_schema(parameters=PERIOD)
    def get(self, request: Request, name: str) -> Response:
        """Show each GPU of the pool with its holds over time; their holders only if they are the caller's."""
        pool = self.find(name)
        question = shapes.PeriodSerializer(data=dict(request.query_params.items()))
        question.is_valid(raise_exception=True)
        values = question.validated_data
        begin = values.get("from") or timezone.now()
        found = pool_calendar(
            principal=self.principal,
            pool=pool,
            begin=begin,
            end=values.get("to") or min(begin, LAST_WEEK) + A_WEEK,
            node=values.get("node"),
        )
        return Response(self.get_serializer(found).data)
