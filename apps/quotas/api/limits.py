"""/limit-ranges/: bounds of one claim's fields. /member-limits/: bounds of one member's holdings."""

from typing import Any

from django_filters import rest_framework as filters
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from apps.quotas.api.serializers import PoolByName, TenantBySlug, amount_field
from apps.quotas.api.views import ApiView, ListMixin
from apps.quotas.idempotency import idempotent
from apps.quotas.models import LimitRange, MemberLimit, Resource, User
from apps.quotas.models.limits import ClaimField
from apps.quotas.models.resource import MOST_AMOUNT
from apps.quotas.services import limit_ranges, member_limits
from gpucloud.api import etags
from gpucloud.api.filters import Changed
from gpucloud.api.serializers import Strict, StrictInteger

NO_MEMBER = "{value} is not a member of this tenant."


def _bound() -> StrictInteger:
    return StrictInteger(min_value=1, max_value=MOST_AMOUNT, allow_null=True, default=None, help_text="Null: no bound.")


class LimitRangeSerializer(Strict):
    """Bounds of one field of a tenant's claims."""

    id = serializers.IntegerField(source="pk", read_only=True)
    tenant = TenantBySlug()
    pool = PoolByName(allow_null=True, default=None, help_text="Null: every pool.")
    field = serializers.ChoiceField(choices=ClaimField.choices)
    minimum = _bound()
    maximum = _bound()
    default = amount_field("range_default", "none", least=1, default=None)
    version = serializers.IntegerField(read_only=True)
    created_at = serializers.DateTimeField(read_only=True)
    updated_at = serializers.DateTimeField(read_only=True)


class LimitRangeChangeSerializer(LimitRangeSerializer):
    """Changeable fields of a range."""

    tenant = serializers.CharField(source="tenant.slug", read_only=True)  # type: ignore[assignment]
    pool = serializers.CharField(source="pool.name", read_only=True, allow_null=True)  # type: ignore[assignment]
    field = serializers.ChoiceField(choices=ClaimField.choices, read_only=True)


class LimitRangeFilter(Changed):
    """Ranges by tenant, pool and field."""

    tenant = filters.CharFilter(field_name="tenant__slug")
    pool = filters.CharFilter(field_name="pool__name")

    class Meta:
        model = LimitRange
        fields = ["tenant", "pool", "field", "updated_since"]


class LimitRangeView(ApiView):
    """Base of the views of ranges."""

    serializer_class = LimitRangeSerializer
    read_scope, write_scope = "quotas:read", "quotas:write"

    def get_queryset(self) -> Any:
        """Return the rows visible to the caller."""
        return LimitRange.objects.visible_to(self.principal).select_related("tenant", "pool")


class LimitRangeList(LimitRangeView, ListMixin):
    """Limit ranges: bounds of one claim's fields."""

    filterset_class = LimitRangeFilter

    def get(self, request: Request) -> Response:
        """List limit ranges."""
        return self.list_page(self.get_queryset())

    @idempotent
    def post(self, request: Request) -> Response:
        """Bound a field of a tenant's claims, or give it a default."""
        return self.answer(limit_ranges.create_range(principal=self.principal, **self.parse_body(request)), status=201)


class LimitRangeDetail(LimitRangeView):
    """One limit range."""

    serializer_class = LimitRangeChangeSerializer

    def get(self, request: Request, pk: int) -> Response:
        """Show a limit range."""
        return self.answer(self.find(pk))

    def patch(self, request: Request, pk: int) -> Response:
        """Set bounds or default."""
        row = self.find(pk)
        values, versions = self.parse_body(request, partial=True), etags.if_match(request)
        return self.answer(limit_ranges.change_range(principal=self.principal, row=row, versions=versions, **values))

    @extend_schema(responses={204: None})
    def delete(self, request: Request, pk: int) -> Response:
        """Remove a limit range."""
        limit_ranges.delete_range(principal=self.principal, row=self.find(pk), versions=etags.if_match(request))
        return Response(status=204)


class MemberLimitSerializer(Strict):
    """Limit of one member of a tenant for one resource, over all pools."""

    id = serializers.IntegerField(source="pk", read_only=True)
    tenant = TenantBySlug()
    member = serializers.SlugRelatedField(
        slug_field="username",
        source="user",
        queryset=User.objects.filter(is_active=True),
        allow_null=True,
        default=None,
        help_text="Null: every member without a limit of its own.",
        error_messages={"does_not_exist": NO_MEMBER},
    )
    resource = serializers.ChoiceField(choices=Resource.choices)
    hard = amount_field("member_hard", "unlimited")
    version = serializers.IntegerField(read_only=True)
    created_at = serializers.DateTimeField(read_only=True)
    updated_at = serializers.DateTimeField(read_only=True)

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Refuse users who are not members, with the same message as unknown users."""
        user, tenant = attrs.get("user"), attrs.get("tenant")
        if user is not None and tenant is not None and not tenant.memberships.filter(user=user).exists():
            raise serializers.ValidationError({"member": [NO_MEMBER.format(value=user.get_username())]})
        return attrs


class MemberLimitChangeSerializer(MemberLimitSerializer):
    """Changeable fields of a member limit."""

    tenant = serializers.CharField(source="tenant.slug", read_only=True)  # type: ignore[assignment]
    member = serializers.CharField(  # type: ignore[assignment]
        source="user.username", read_only=True, allow_null=True
    )
    resource = serializers.ChoiceField(choices=Resource.choices, read_only=True)


class MemberLimitFilter(Changed):
    """Member limits by tenant, member and resource."""

    tenant = filters.CharFilter(field_name="tenant__slug")
    member = filters.CharFilter(field_name="user__username")

    class Meta:
        model = MemberLimit
        fields = ["tenant", "member", "resource", "updated_since"]


class MemberLimitView(ApiView):
    """Base of the views of member limits."""

    serializer_class = MemberLimitSerializer
    read_scope, write_scope = "quotas:read", "quotas:write"

    def get_queryset(self) -> Any:
        """Return the rows visible to the caller."""
        return MemberLimit.objects.visible_to(self.principal).select_related("tenant", "user")


class MemberLimitList(MemberLimitView, ListMixin):
    """Member limits: bounds of one member's holdings."""

    filterset_class = MemberLimitFilter

    def get(self, request: Request) -> Response:
        """List members' limits."""
        return self.list_page(self.get_queryset())

    @idempotent
    def post(self, request: Request) -> Response:
        """Limit the holdings of one member, or of every member."""
        return self.answer(member_limits.create_limit(principal=self.principal, **self.parse_body(request)), status=201)


class MemberLimitDetail(MemberLimitView):
    """One member's limit."""

    serializer_class = MemberLimitChangeSerializer

    def get(self, request: Request, pk: int) -> Response:
        """Show a member's limit."""
        return self.answer(self.find(pk))

    def patch(self, request: Request, pk: int) -> Response:
        """Set `hard`. Below the present holdings nothing is taken away and nothing new is granted."""
        row = self.find(pk)
        values, versions = self.parse_body(request, partial=True), etags.if_match(request)
        return self.answer(member_limits.change_limit(principal=self.principal, row=row, versions=versions, **values))

    @extend_schema(responses={204: None})
    def delete(self, request: Request, pk: int) -> Response:
        """Remove a member limit."""
        member_limits.delete_limit(principal=self.principal, row=self.find(pk), versions=etags.if_match(request))
        return Response(status=204)
