"""Views of /groups/."""

from typing import Any
from uuid import UUID

from django.http import Http404
from django_filters import rest_framework as filters
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema, extend_schema_field
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from apps.groups.members import state_of
from apps.quotas.api.methods import lists
from apps.quotas.api.views import ApiView, ListMixin
from apps.quotas.models import Pool, Tenant
from apps.scheduling.models import Claim, ElasticGroup
from gpucloud.api import etags, shown
from gpucloud.api.filters import Changed, Named
from gpucloud.api.serializers import Strict
from gpucloud.errors import Conflict

WAIT = OpenApiParameter(
    "wait",
    OpenApiTypes.INT,
    description="With If-None-Match: wait until the members differ from that ETag, for this many seconds at most (300 "
    "or less); 304 if they do not.",
)
STATES = ("waiting", "running", "ended")


class NameOfSeveral(Conflict, code="name-of-several", title="Several groups have this name"):
    """Groups of several tenants or pools have the name."""


class GroupMemberSerializer(Strict):
    """A member of a group: a claim whose programs may run now."""

    rank = shown.integer("Its place among the members, from 0; the oldest has the lowest.")
    claim = shown.uid()
    node = shown.text()
    host = shown.text("The machine's own name, by which others reach it where a name service knows it.")
    gpu_count = shown.integer()
    joined_at = shown.time()
    leaves_at = shown.time("It is released then, as others need its room. Null: it stays.", null=True)


class GroupSerializer(Strict):
    """An elastic group: claims that start together, join while it runs, and leave where others need their room."""

    uid = shown.uid("The uid of its first claim.", source="first.uid")
    name = shown.text(source="first.group")
    tenant = shown.text(source="first.tenant.slug")
    pool = shown.text(source="first.pool.name")
    group_size = shown.integer("The least number of members with which it runs.", source="least")
    group_most = shown.integer(source="first.group_most")
    state = serializers.SerializerMethodField(help_text=f"One of {', '.join(STATES)}.")
    generation = shown.integer("Raised by every change of the members; the ETag, too.")
    updated_at = shown.time()
    members = serializers.SerializerMethodField()

    def get_state(self, group: ElasticGroup) -> str:
        """Return whether it waits, runs or has ended."""
        return state_of(group)

    @extend_schema_field(GroupMemberSerializer(many=True))
    def get_members(self, group: ElasticGroup) -> list[dict[str, Any]]:
        """Return the members with their ranks."""
        return [{"rank": rank, **member} for rank, member in enumerate(group.members)]


class GroupFilter(Changed):
    """Groups by tenant, pool, name, and time of change."""

    tenant = Named(Tenant.objects, "slug", field_name="first__tenant")
    pool = Named(Pool.objects, "name", field_name="first__pool")
    name = filters.CharFilter(field_name="first__group")
    live = filters.BooleanFilter(method="is_live", help_text="True: without those that have ended.")

    class Meta:
        model = ElasticGroup
        fields = ["tenant", "pool", "name", "live", "updated_since"]

    def is_live(self, queryset: Any, name: str, value: bool) -> Any:
        """Return the groups whose first claim is not released, or those whose is."""
        ended = {"first__state__in": ["releasing", "released"], "first__preempt_at": None}
        return queryset.exclude(**ended) if value else queryset.filter(**ended)


class GroupView(ApiView):
    """The common part of group views."""

    serializer_class: Any = GroupSerializer
    read_scope = "claims:read"

    def get_queryset(self) -> Any:
        """Return the groups of claims that the caller may see."""
        visible = Claim.objects.visible_to(self.principal)
        return ElasticGroup.objects.filter(first__in=visible).select_related("first__tenant", "first__pool")


class GroupList(GroupView, ListMixin):
    """Elastic groups."""

    filterset_class = GroupFilter
    get = lists("List elastic groups, newest first; ended ones stay as history.")


class GroupDetail(GroupView):
    """One elastic group."""

    @extend_schema(parameters=[WAIT])
    def get(self, request: Request, key: str) -> Response:
        """Show a group, by its uid or its name: of several that had the name, the living one, else the newest."""
        group = self._find(key)
        tag = etags.etag(group.generation)
        if request.headers.get("If-None-Match") == tag:
            return Response(status=304, headers={"ETag": tag})
        return Response(self.get_serializer(group).data, headers={"ETag": tag})

    def _find(self, key: str) -> ElasticGroup:
        rows = self.get_queryset()
        try:
            found = rows.filter(first__uid=UUID(key))
        except ValueError:
            found = rows.filter(first__group=key)
        # The newest of each tenant and pool is the only one that can live.
        place = "first__tenant_id", "first__pool_id"
        newest: list[ElasticGroup] = list(found.order_by(*place, "-pk").distinct(*place))
        living = [group for group in newest if state_of(group) != "ended"] or newest
        if not living:
            raise Http404
        if len(living) > 1:
            raise NameOfSeveral(
                f"{len(living)} groups are called {key}: give the uid of one (a list of groups has it)."
            )
        return living[0]
