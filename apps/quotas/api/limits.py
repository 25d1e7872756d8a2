"""/limit-ranges/: bounds of one claim's fields. /member-limits/: bounds of one member's holdings."""

from typing import Any

from django.core.validators import RegexValidator
from django_filters import rest_framework as filters
from rest_framework import serializers

from apps.quotas.api.methods import changes, creates, lists, removes, shows
from apps.quotas.api.serializers import RESOURCE_HELP, RESOURCE_WRONG, PoolByName, TenantBySlug, amount_field
from apps.quotas.api.views import ApiView, ListMixin
from apps.quotas.models import LimitRange, MemberLimit, User
from apps.quotas.models.limits import ClaimField
from apps.quotas.models.resource import MOST_AMOUNT, RESOURCE
from apps.quotas.services import limit_ranges, member_limits
from gpucloud.api import shown
from gpucloud.api.filters import filters_of
from gpucloud.api.serializers import Strict, StrictInteger
from gpucloud.api.shown import Columns

NO_MEMBER = "{value} is not a member of this tenant."


def _bound() -> StrictInteger:
    return StrictInteger(min_value=1, max_value=MOST_AMOUNT, allow_null=True, default=None, help_text="Null: no bound.")


class LimitRangeSerializer(Strict):
    """Bounds of one field of a tenant's claims."""

    id = shown.integer(source="pk")
    tenant = TenantBySlug()
    pool = PoolByName(allow_null=True, default=None, help_text="Null: every pool.")
    field = serializers.ChoiceField(choices=ClaimField.choices)
    minimum = _bound()
    maximum = _bound()
    default = amount_field("range_default", "none", least=1, default=None)
    changed = Columns(LimitRange, "version created_at updated_at")


class LimitRangeChangeSerializer(LimitRangeSerializer):
    """Changeable fields of a range."""

    tenant = shown.text(source="tenant.slug")
    pool = shown.text(null=True, source="pool.name")
    field = shown.choice(ClaimField.choices)


class LimitRangeView(ApiView):
    """Base of the views of ranges."""

    serializer_class = LimitRangeSerializer
    read_scope, write_scope = "quotas:read", "quotas:write"
    queryset = LimitRange.objects.select_related("tenant", "pool")


class LimitRangeList(LimitRangeView, ListMixin):
    """Limit ranges: bounds of one claim's fields."""

    filterset_class = filters_of(LimitRange, "field", tenant="tenant__slug", pool="pool__name")
    get = lists("List limit ranges.")
    post = creates(limit_ranges.create_range, "Bound a field of a tenant's claims, or give it a default.")


class LimitRangeDetail(LimitRangeView):
    """One limit range."""

    serializer_class = LimitRangeChangeSerializer
    get = shows("Show a limit range.")
    patch = changes(limit_ranges.change_range, "row", "Set bounds or default.")
    delete = removes(limit_ranges.delete_range, "row", "Remove a limit range.")


class MemberLimitSerializer(Strict):
    """Limit of one member of a tenant for one resource, over all pools."""

    id = shown.integer(source="pk")
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
    resource = serializers.RegexField(RESOURCE, help_text=RESOURCE_HELP, error_messages={"invalid": RESOURCE_WRONG})
    hard = amount_field("member_hard", "unlimited")
    changed = Columns(MemberLimit, "version created_at updated_at")

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Refuse users who are not members, with the same message as unknown users."""
        user, tenant = attrs.get("user"), attrs.get("tenant")
        if user is not None and tenant is not None and not tenant.memberships.filter(user=user).exists():
            raise serializers.ValidationError({"member": [NO_MEMBER.format(value=user.get_username())]})
        return attrs


class MemberLimitChangeSerializer(MemberLimitSerializer):
    """Changeable fields of a member limit."""

    tenant = shown.text(source="tenant.slug")
    member = shown.text(null=True, source="user.username")
    resource = shown.text(RESOURCE_HELP)


class MemberLimitView(ApiView):
    """Base of the views of member limits."""

    serializer_class = MemberLimitSerializer
    read_scope, write_scope = "quotas:read", "quotas:write"
    queryset = MemberLimit.objects.select_related("tenant", "user")


class MemberLimitList(MemberLimitView, ListMixin):
    """Member limits: bounds of one member's holdings."""

    filterset_class = filters_of(
        MemberLimit,
        tenant="tenant__slug",
        member="user__username",
        resource=filters.CharFilter(validators=[RegexValidator(RESOURCE, RESOURCE_WRONG)]),
    )
    get = lists("List members' limits.")
    post = creates(member_limits.create_limit, "Limit the holdings of one member, or of every member.")


class MemberLimitDetail(MemberLimitView):
    """One member's limit."""

    serializer_class = MemberLimitChangeSerializer
    get = shows("Show a member's limit.")
    patch = changes(
        member_limits.change_limit,
        "row",
        "Set `hard`. Below the present holdings nothing is taken away and nothing new is granted.",
    )
    delete = removes(member_limits.delete_limit, "row", "Remove a member limit.")
