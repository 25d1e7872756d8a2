"""Views of /claims/ and /assignments/."""

import re
import uuid
from collections.abc import Callable
from typing import Any

from django.db.models import Prefetch, QuerySet
from django.http import Http404, HttpResponse
from django.shortcuts import get_object_or_404
from django_filters import rest_framework as filters
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from apps.quotas.api.methods import lists, order, shows
from apps.quotas.api.views import ApiView, ListMixin
from apps.quotas.idempotency import idempotent
from apps.quotas.models import Pool, Tenant
from apps.quotas.models.pool import DEFAULT
from apps.scheduling.api import pages, serializers
from apps.scheduling.api.queue import ClaimDocumentSerializer
from apps.scheduling.models import Assignment, AssignmentState, Claim, ClaimState
from apps.scheduling.services.charging.shortages import refresh_quota_reasons
from apps.scheduling.services.claims.environment import claim_environment, shell_lines
from apps.scheduling.services.claims.leases import renew_claim
from apps.scheduling.services.claims.lifecycle import create_claim, release_claim
from apps.scheduling.services.claims.resize import resize_claim
from apps.scheduling.services.claims.spec import ClaimChanges, ClaimSpec
from apps.scheduling.services.previews.dry_runs import rehearse
from apps.scheduling.waiting import WAITED_FOR
from gpucloud.api import etags
from gpucloud.api.filters import Changed, Constant, Named, StateFilter, filters_of
from gpucloud.commits import Ending
from gpucloud.fastpath.compiled_queries import compiled_query, set_prefetched

WAIT = OpenApiParameter(
    "wait", OpenApiTypes.INT, description="Wait until it is in force, for this many seconds at most (300 or less)."
)

DRY_RUN = OpenApiParameter("dry_run", OpenApiTypes.BOOL, description="Show what would happen and change nothing.")
WOULD_RECLAIM = OpenApiParameter(
    "dry_run",
    OpenApiTypes.BOOL,
    description="Show what would happen and change nothing. `reclaims` says how many claims of tenants that borrow "
    "would go back to the queue for this one, and which of them the caller may see.",
)

UID_PREFIX = re.compile(r"[0-9a-f]{1,32}")
# The rows that an answer shows beside the claim itself; the assignments in one query for any number of claims.
SHOWN = ("tenant", "pool", "reservation", "rotation", "pack_profile")
ASSIGNMENTS = Prefetch("assignments", Assignment.objects.select_related("gpu__node"))


@compiled_query
def _by_uid(uid: Any) -> QuerySet[Claim]:
    return Claim.objects.select_related(*SHOWN).filter(uid=uid)


@compiled_query
def _assignments_of(claim: Any) -> QuerySet[Assignment]:
    return Assignment.objects.select_related("gpu__node").filter(claim=claim)


@compiled_query
def _default_pools() -> QuerySet[Pool]:
    return Pool.objects.filter(name=DEFAULT)


RELEASED = Constant("released", ("released",))


class Live(Changed):
    """Rows that are released stay as history; `live=true` leaves them out."""

    live = filters.BooleanFilter(
        field_name="state", method="is_live", help_text="True: without released ones; false: released ones only."
    )

    def is_live(self, queryset: Any, name: str, value: bool) -> Any:
        """Return the rows that are released, or those that are not."""
        released = {name: RELEASED}
        return queryset.exclude(**released) if value else queryset.filter(**released)


class ClaimFilter(Live):
    """Claims by tenant, pool, node, state, name, the beginning of the uid, and time of change."""

    tenant = Named(Tenant.objects, "slug")
    pool = Named(Pool.objects, "name")
    node = filters.CharFilter(method="on_node")
    state = StateFilter(choices=ClaimState.choices)
    uid_prefix = filters.CharFilter(
        field_name="uid", method="begins_with", help_text="The first hexadecimal digits of the uid."
    )

    class Meta:
        model = Claim
        fields = ["tenant", "pool", "node", "state", "name", "live", "uid_prefix", "updated_since"]

    def on_node(self, queryset: Any, name: str, value: str) -> Any:
        """Return the claims that have, or had, an assignment on the node."""
        return queryset.filter(pk__in=Assignment.objects.filter(gpu__node__name=value).values("claim"))

    def begins_with(self, queryset: Any, name: str, value: str) -> Any:
        """Return the claims whose uid begins with these digits: a range of the index on the uid."""
        digits = value.replace("-", "").lower()
        if not UID_PREFIX.fullmatch(digits):
            raise ValidationError({"uid_prefix": ["Must be hexadecimal digits, 32 at most."]})
        least, most = uuid.UUID(digits.ljust(32, "0")), uuid.UUID(digits.ljust(32, "f"))
        return queryset.filter(**{f"{name}__gte": least, f"{name}__lte": most})


class ClaimView(ApiView):
    """The common part of claim views."""

    serializer_class: Any = serializers.ClaimSerializer
    lookup_key = "uid"
    read_scope, write_scope = "claims:read", "claims:write"
    queryset = Claim.objects.select_related(*SHOWN).prefetch_related(ASSIGNMENTS)

    def find(self, key: object) -> Claim:
        """Return the claim with this uid if the caller may see it; else raise 404."""
        for claim in _by_uid(key):
            if self.principal.sees(claim.tenant):
                return claim
        raise Http404

    def named(self, uid: object) -> Claim:
        """Return the claim to be changed; the assignments that an answer shows are read after the change."""
        return get_object_or_404(Claim.objects.visible_to(self.principal).select_related("tenant"), uid=uid)

    def respond(self, claim: Claim, *, status: int = 200, kind: Any = serializers.ClaimSerializer) -> Response:
        """Return a response with the claim as it was read, made or changed."""
        set_prefetched(claim, "assignments", [] if status == 201 else _assignments_of(claim.pk))
        headers = {"ETag": etags.etag(claim.version), "Location": f"/api/v1/claims/{claim.uid}/"}
        return Response(kind.document(claim), status=status, headers=headers)

    def release(self, request: Request, uid: str) -> Response:
        """Release the claim."""
        claim = release_claim(principal=self.principal, claim=self.named(uid), versions=etags.if_match(request))
        return self.respond(claim, status=200 if claim.state == "released" else 202)

    def respond_preview(self, act: Callable[[], Claim], *, new: bool = False) -> Response:
        """Return a response with the claim as it would be after `act`."""
        asks_anew = self.principal if new else None
        return Response(rehearse(act, lambda claim: dict(self.respond(claim).data), asks_anew=asks_anew))


def dry_run(request: Request) -> bool:
    """Return True if only a preview is requested. Raises ValidationError for anything but true and false."""
    text = request.query_params.get("dry_run", "false").lower()
    if text not in ("true", "false"):
        raise ValidationError({"dry_run": ["Must be true or false."]})
    return text == "true"


class ClaimList(ClaimView, ListMixin):
    """Claims: requests of tenants for pieces of GPUs."""

    queryset = Claim.objects.all()
    filterset_class = ClaimFilter
    rows_of_page = staticmethod(pages.claims)
    change_parameters = {"POST": frozenset({"wait", "dry_run"})}
    # Posts of one tenant lock its quotas for as short as possible.
    ending: Ending | None = None

    def get(self, request: Request) -> Response:
        """List claims, newest first; released ones stay as history."""
        rows = refresh_quota_reasons(self.read_page(self.get_queryset()))
        return self.get_paginated_response(self.get_serializer(rows, many=True).data)

    @extend_schema(parameters=[WAIT, WOULD_RECLAIM])
    @idempotent
    def post(self, request: Request) -> Response:
        """Create a claim for pieces of GPUs. The quota is charged at once; a round then places the claim."""
        values = self.parse_body(request)
        reservation = values.get("reservation")
        values["pool"] = values["pool"] or (reservation.pool if reservation else _pool_beside(values["instance_of"]))

        def act(ending: Ending | None = None) -> Claim:
            return create_claim(principal=self.principal, spec=ClaimSpec(**values), ending=ending)

        return self.respond_preview(act, new=True) if dry_run(request) else self.respond(act(self.ending), status=201)


def _pool_beside(opener_uid: uuid.UUID | None) -> Pool:
    """Return the pool of the claim in whose instance a new one runs; without one, the default."""
    opener = Claim.objects.select_related("pool").filter(uid=opener_uid).first() if opener_uid else None
    return opener.pool if opener is not None else default_pool()


def default_pool() -> Pool:
    """Return the pool of a claim that names none. Raises ValidationError if there is none."""
    for pool in _default_pools():
        return pool
    raise ValidationError({"pool": [f"There is no pool {DEFAULT}: name another one, or let an operator create it."]})


class ClaimDetail(ClaimView):
    """One claim."""

    change_parameters = {"PATCH": frozenset({"wait", "dry_run"}), "DELETE": frozenset({"wait"})}

    def get_serializer_class(self) -> Any:
        """Return the serializer: a resize has only what can be changed live; a GET shows the place in the queue."""
        other = {"PATCH": serializers.ResizeSerializer, "GET": ClaimDocumentSerializer}
        return other.get(self.request.method or "", super().get_serializer_class())

    def get(self, request: Request, uid: str) -> Response:
        """Show a claim; if it waits, also its place in the queue and its estimated start."""
        # A wait reads the claim every second, and its answer has the shape of the change that it belongs to.
        waited_for = getattr(request, "scope", {}).get(WAITED_FOR)
        kind = serializers.ClaimSerializer if waited_for else ClaimDocumentSerializer
        return self.respond(self.find(uid), kind=kind)

    @extend_schema(parameters=[WAIT, DRY_RUN], responses={200: serializers.ClaimSerializer})
    def patch(self, request: Request, uid: str) -> Response:
        """Change its limits, live: same process, no restart."""
        claim = self.named(uid)
        values = self.parse_body(request, partial=True)
        versions = etags.if_match(request)

        def act() -> Claim:
            return resize_claim(
                principal=self.principal, claim=claim, versions=versions, changes=ClaimChanges(**values)
            )

        return self.respond_preview(act) if dry_run(request) else self.respond(act())

    @extend_schema(parameters=[WAIT], responses={202: serializers.ClaimSerializer, 200: serializers.ClaimSerializer})
    def delete(self, request: Request, uid: str) -> Response:
        """Release the claim. 202 while its processes end, 200 once it is released; may be repeated."""
        return self.release(request, uid)


class ClaimRelease(ClaimView):
    """Release by POST, for clients that cannot send DELETE."""

    change_parameters = {"POST": frozenset({"wait"})}

    @extend_schema(
        request=None,
        parameters=[WAIT],
        responses={202: serializers.ClaimSerializer, 200: serializers.ClaimSerializer},
    )
    @idempotent
    def post(self, request: Request, uid: str) -> Response:
        """Release the claim. 202 while its processes end, 200 once it is released; may be repeated."""
        self.without_body(request)
        return self.release(request, uid)


ClaimRenew = order(ClaimView, renew_claim, "claim", "Renew the claim's lease: it runs anew from now.")


class ClaimEnv(ClaimView):
    """The environment of a process under a claim."""

    serializer_class: Any = serializers.EnvSerializer
    # The secret lets its holder use the claim, so reading it needs the right to use the claim.
    read_scope = "claims:write"

    @extend_schema(
        parameters=[OpenApiParameter("as", OpenApiTypes.STR, enum=["json", "sh"], description="`sh`: export lines.")]
    )
    def get(self, request: Request, uid: str) -> Response | HttpResponse:
        """Show the environment of a process under the claim; 409 before it is placed."""
        form = request.query_params.get("as", "json")
        if form not in ("json", "sh"):
            raise ValidationError({"as": ["Must be json or sh."]})
        facts = claim_environment(principal=self.principal, claim=self.find(uid))
        if form == "sh":
            return HttpResponse(shell_lines(facts), content_type="text/plain", headers={"Cache-Control": "no-store"})
        return Response(self.get_serializer(facts).data, headers={"Cache-Control": "no-store"})


class AssignmentView(ApiView):
    """The common part of assignment views."""

    serializer_class = serializers.AssignmentSerializer
    lookup_key = "uid"
    read_scope = "claims:read"

    def get_queryset(self) -> Any:
        """Return the assignments of claims that the caller may see."""
        visible = Claim.objects.visible_to(self.principal)
        return Assignment.objects.filter(claim__in=visible).select_related("claim", "gpu__node")


class AssignmentList(AssignmentView, ListMixin):
    """Assignments: vGPUs."""

    rows_of_page = staticmethod(pages.assignments)
    filterset_class = filters_of(
        Assignment,
        base=Live,
        state=StateFilter(choices=AssignmentState.choices),
        claim=filters.UUIDFilter(field_name="claim__uid"),
        tenant=Named(Tenant.objects, "slug", field_name="claim__tenant"),
        node="gpu__node__name",
        gpu="gpu__uuid",
    )
    get = lists("List assignments.")


class AssignmentDetail(AssignmentView):
    """One assignment."""

    get = shows("Show an assignment.")
