"""Serializers of this app's resources."""

import ipaddress
from typing import Any

from django.db.models import QuerySet
from django.utils import timezone
from django.utils.translation import gettext_lazy as _
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from apps.quotas.models import Organisation, Pool, Resource, Role, Tenant, User
from apps.quotas.models.audit import AuditEvent
from apps.quotas.models.quota import LedgerEntry, ResourceQuota
from apps.quotas.models.resource import AMOUNT_HELP, MOST_AMOUNT, RESOURCE
from apps.quotas.models.row import MOST_NAME
from apps.quotas.models.tenant import SLUG
from apps.quotas.models.token import Token
from apps.quotas.principals import SCOPES, Principal
from gpucloud.api import shown
from gpucloud.api.serializers import Strict, StrictInteger
from gpucloud.api.shown import Columns
from gpucloud.fastpath.compiled_queries import compiled_query


@compiled_query
def _tenants(slug: Any) -> QuerySet[Tenant]:
    return Tenant.objects.filter(slug=slug)


@compiled_query
def _pools(name: Any) -> QuerySet[Pool]:
    return Pool.objects.filter(name=name)


class TenantBySlug(serializers.SlugRelatedField[Tenant]):
    """A tenant by its slug; a tenant that the caller may not see does not exist."""

    default_error_messages = {"does_not_exist": "There is no tenant {value} that you may use."}

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(slug_field="slug", queryset=Tenant.objects.none(), **kwargs)

    def to_internal_value(self, data: Any) -> Tenant:
        """Return the tenant. Raises ValidationError."""
        caller: Principal = self.context["request"].user
        for tenant in _tenants(data):
            if caller.sees(tenant):
                return tenant
        return self.fail("does_not_exist", value=data)


class OrganisationBySlug(serializers.SlugRelatedField[Organisation]):
    """An organisation by its slug; one that the caller may not see does not exist."""

    default_error_messages = {"does_not_exist": "There is no organisation {value} that you may use."}

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(slug_field="slug", queryset=Organisation.objects.none(), **kwargs)

    def get_queryset(self) -> QuerySet[Organisation]:
        """Return the organisations that the caller may see."""
        return Organisation.objects.visible_to(self.context["request"].user)


class PoolByName(serializers.SlugRelatedField[Pool]):
    """A pool by its name."""

    default_error_messages = {"does_not_exist": "There is no pool {value}."}

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(slug_field="name", queryset=Pool.objects.none(), **kwargs)

    def to_internal_value(self, data: Any) -> Pool:
        """Return the pool. Raises ValidationError."""
        for pool in _pools(data):
            return pool
        return self.fail("does_not_exist", value=data)


REMOTE_HELP = _("Its programs on other machines may use its claims, in pools that allow it.")


class TenantSerializer(Strict):
    """A tenant."""

    slug = serializers.RegexField(SLUG, help_text="Lower-case letters, digits and dashes; 63 at most; never changes.")
    name = serializers.CharField(max_length=MOST_NAME, required=False, help_text="For people; the slug unless given.")
    weight = StrictInteger(min_value=1, max_value=1000, default=1)
    cohort = serializers.RegexField(SLUG, allow_null=True, default=None)
    organisation = OrganisationBySlug(
        allow_null=True, default=None, help_text="Its quotas, and those above it, count what the tenant holds."
    )
    remote = serializers.BooleanField(default=False, help_text=REMOTE_HELP)
    changed = Columns(Tenant, "version created_at updated_at")


class TenantChangeSerializer(TenantSerializer):
    """Changeable fields of a tenant."""

    slug = shown.text()


class MemberSerializer(Strict):
    """A person's role in a tenant."""

    username = serializers.SlugRelatedField(
        slug_field="username",
        source="user",
        queryset=User.objects.filter(is_active=True),
        error_messages={"does_not_exist": "There is no active user {value}: invite them."},
    )
    role = serializers.ChoiceField(choices=Role.choices)


def amount_field(name: str, null: str, *, least: int = 0, **more: Any) -> StrictInteger:
    """Return an amount with its bounds and its help text, which are defined beside the models."""
    help_text = f"{AMOUNT_HELP[name]} Null: {null}."
    return StrictInteger(min_value=least, max_value=MOST_AMOUNT, allow_null=True, help_text=help_text, **more)


RESOURCE_HELP = (
    "`core_percent`, `memory_mib`, `vgpus`, `gpus` or `host_memory_mib`; or `mig/PROFILE`, such as mig/2g.35gb: the "
    "number of MIG instances of this profile."
)
RESOURCE_WRONG = f"Must be one of {', '.join(Resource.values)}, or mig/PROFILE, such as mig/2g.35gb."


class QuotaSerializer(Strict):
    """A quota: a tenant's limit of one resource."""

    id = shown.integer(source="pk")
    tenant = TenantBySlug()
    pool = PoolByName(allow_null=True, default=None, help_text="Null: all pools together.")
    resource = serializers.RegexField(RESOURCE, help_text=RESOURCE_HELP, error_messages={"invalid": RESOURCE_WRONG})
    hard = amount_field("hard", "unlimited")
    borrowing_limit = amount_field("borrowing_limit", "all that is lent", default=None)
    lending_limit = amount_field("lending_limit", "all of it", default=None)
    used = shown.integer()
    borrowed = shown.integer("Used above `hard`.")
    lent = shown.integer("Idle part of `hard` that others of the cohort use.")
    free = shown.integer("Amount that can still be charged. Null: no bound.", null=True)
    changed = Columns(ResourceQuota, "version created_at updated_at")


class QuotaChangeSerializer(QuotaSerializer):
    """Changeable fields of a quota."""

    tenant = shown.text(source="tenant.slug")
    pool = shown.text(null=True, source="pool.name")
    resource = shown.text(RESOURCE_HELP)


class LedgerSerializer(Strict):
    """One change of a quota's amounts."""

    id = shown.integer(source="pk")
    at = shown.time()
    kind = shown.text()
    columns = Columns(LedgerEntry, "amount used hard")
    claim = shown.uid(null=True, source="claim_uid")
    actor = shown.text()


# Each network is compared at every request of the token.
MOST_NETWORKS = 64


def _cidr(value: str) -> None:
    try:
        ipaddress.ip_network(value, strict=False)
    except ValueError as error:
        raise serializers.ValidationError(f"{value} is not a network like 10.0.0.0/8.") from error


class TokenSerializer(Strict):
    """A token, without its secret."""

    key = shown.text()
    name = serializers.CharField(max_length=MOST_NAME)
    tenant = TenantBySlug(allow_null=True, default=None, help_text="Null: the whole platform (operators only).")
    role = serializers.ChoiceField(
        choices=Role.choices, default=Role.MEMBER, help_text="In the tenant; means nothing for a personal token."
    )
    personal = shown.flag("True: it has its owner's own rights.")
    owner = shown.text(
        "The person on whose behalf it acts; null: none.", null=True, source="user.username", default=None
    )
    scopes = serializers.ListField(
        child=serializers.ChoiceField(choices=[(scope, scope) for scope in SCOPES]),
        allow_empty=False,
        max_length=len(SCOPES),
        default=lambda: list(SCOPES),
    )
    cidrs = serializers.ListField(
        child=serializers.CharField(max_length=50, validators=[_cidr]), max_length=MOST_NETWORKS, default=list
    )
    expires_at = serializers.DateTimeField(allow_null=True, default=None)
    columns = Columns(Token, "revoked_at last_used_at version created_at updated_at")

    def validate_expires_at(self, value: Any) -> Any:
        """Refuse times in the past."""
        if value and value <= timezone.now():
            raise serializers.ValidationError("This moment has passed.")
        return value


class NewTokenSerializer(TokenSerializer):
    """A new token: its text is shown only once."""

    token = shown.text()


class RotationSerializer(Strict):
    """Rotation of a token."""

    overlap_seconds = StrictInteger(
        min_value=0,
        max_value=30 * 86400,
        default=86400,
        help_text="Seconds for which the old token still works; 0: none.",
    )


class AuditSerializer(Strict):
    """An audit event."""

    id = shown.integer(source="pk")
    columns_1 = Columns(AuditEvent, "at actor action object_type object_id")
    tenant = shown.text(null=True, source="tenant.slug", default=None)
    columns_2 = Columns(AuditEvent, "before after")
    source_ip = serializers.IPAddressField(read_only=True, allow_null=True)
    position = shown.integer("Position in the chain; null for about a second, until it is sealed.", null=True)
    digest = shown.text("SHA-256 of this event and the digest of the one before it.", null=True)


class OwnTokenSerializer(Strict):
    """The caller's token, so that a program can renew it in time."""

    columns = Columns(Token, "key name expires_at")


class MeSerializer(Strict):
    """The caller."""

    name = shown.text()
    token = serializers.SerializerMethodField(help_text="Null for a session.")
    username = serializers.SerializerMethodField(help_text="The person; null for a token without one.")
    time_zone = serializers.SerializerMethodField(help_text="Of times on the person's pages; empty: UTC.")
    operator = shown.flag(source="is_operator")
    scopes = serializers.SerializerMethodField()
    roles = serializers.SerializerMethodField(help_text="Role by tenant; an operator needs none.")

    def _person(self, principal: Any) -> User | None:
        return User.objects.filter(pk=principal.user_id).first() if principal.user_id else None

    @extend_schema_field(serializers.CharField(allow_null=True))
    def get_username(self, principal: Any) -> str | None:
        """Return the person's name."""
        person = self._person(principal)
        return person.get_username() if person else None

    @extend_schema_field(serializers.CharField())
    def get_time_zone(self, principal: Any) -> str:
        """Return the person's time zone."""
        person = self._person(principal)
        return person.time_zone if person else ""

    @extend_schema_field(OwnTokenSerializer(allow_null=True))
    def get_token(self, principal: Any) -> Any:
        """Return the token of the request, or None for a session."""
        token = self.context["request"].auth
        return OwnTokenSerializer(token).data if token is not None else None

    @extend_schema_field(serializers.ListField(child=serializers.CharField()))
    def get_scopes(self, principal: Any) -> list[str]:
        """Return the scopes in a fixed order."""
        return sorted(principal.scopes)

    @extend_schema_field(serializers.DictField(child=serializers.CharField()))
    def get_roles(self, principal: Any) -> dict[str, str]:
        """Return the roles by tenant slug."""
        slugs = Tenant.objects.in_bulk(list(principal.roles))
        return {slugs[pk].slug: role for pk, role in principal.roles.items()}
