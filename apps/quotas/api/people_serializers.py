"""Serializers of users, invitations and sessions."""

from typing import Any

from django.contrib.auth.validators import UnicodeUsernameValidator
from django.core.validators import EmailValidator
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from apps.quotas.api.serializers import TenantBySlug, TokenSerializer
from apps.quotas.models import Role, User
from apps.quotas.models.people import Invitation
from apps.quotas.services.invitations import MOST_DAYS, VALID_DAYS
from gpucloud.api import shown
from gpucloud.api.serializers import Strict, StrictInteger
from gpucloud.api.shown import Columns


class UserSerializer(Strict):
    """A user."""

    columns = Columns(User, "username email")
    active = serializers.BooleanField(
        source="is_active", help_text="False: their sessions have ended, and their tokens are revoked."
    )
    operator = serializers.BooleanField(source="is_operator", help_text="Runs the platform.")
    roles = serializers.SerializerMethodField(help_text="Role by tenant; the caller's tenants only.")
    single_sign_on = serializers.SerializerMethodField(help_text="True if the identity provider signs them in.")
    created_at = shown.time(source="date_joined")
    last_seen_at = shown.time(null=True)

    @extend_schema_field(serializers.DictField(child=serializers.CharField()))
    def get_roles(self, user: User) -> dict[str, str]:
        """Return the roles by tenant that the caller may see."""
        caller = self.context["request"].user
        return {one.tenant.slug: one.role for one in user.memberships.all() if caller.sees(one.tenant)}

    @extend_schema_field(serializers.BooleanField())
    def get_single_sign_on(self, user: User) -> bool:
        """Return True if the user has an identity at the provider."""
        return bool(user.identities.all())


class LinkSerializer(Strict):
    """A link that is shown once and works once."""

    link = shown.text()
    expires_at = shown.time()


class InvitationSerializer(Strict):
    """An invitation, without its link."""

    uid = shown.uid()
    username = serializers.CharField(
        max_length=150,
        default="",
        allow_blank=True,
        validators=[UnicodeUsernameValidator()],
        help_text="A suggestion; the person may choose another name.",
    )
    email = serializers.CharField(
        max_length=254, default="", allow_blank=True, help_text="Receives the link if a mail server is configured."
    )
    tenant = TenantBySlug(allow_null=True, default=None, help_text="Null: no role at first (operators only).")
    role = serializers.ChoiceField(choices=Role.choices, default=Role.MEMBER)
    operator = serializers.BooleanField(default=False, help_text="Invites an operator, without a tenant.")
    days = StrictInteger(
        min_value=1, max_value=MOST_DAYS, default=VALID_DAYS, write_only=True, help_text="Days until it expires."
    )
    state = shown.text("`open`, `used`, `revoked` or `expired`.")
    columns = Columns(Invitation, "created_by created_at expires_at used_at revoked_at")

    def validate_email(self, address: str) -> str:
        """Accept a mail address or an empty text; the document cannot say so of an EmailField."""
        if address:
            EmailValidator()(address)
        return address

    def validate(self, values: dict[str, Any]) -> dict[str, Any]:
        """Refuse a tenant beside the operator's role."""
        if values.get("operator") and values.get("tenant") is not None:
            raise serializers.ValidationError({"tenant": ["An operator needs no tenant: leave one of them out."]})
        return values


class NewInvitationSerializer(InvitationSerializer):
    """A new invitation: its link is shown only once."""

    link = shown.text()
    mailed = shown.flag("True if the mail server accepted the mail.")


class MeChangeSerializer(Strict):
    """Changeable fields of the caller."""

    time_zone = serializers.CharField(
        max_length=63, allow_blank=True, help_text="A name like Europe/Berlin, for times on pages; empty: UTC."
    )


class SessionSerializer(Strict):
    """A session of the caller."""

    id = shown.text()
    started_at = shown.time()
    last_seen_at = shown.time()
    source_ip = serializers.IPAddressField(read_only=True, allow_null=True, help_text="Address at the sign-in.")
    browser = shown.text()
    current = shown.flag()


class PersonalTokenSerializer(TokenSerializer):
    """A token with its owner's own rights."""

    tenant = shown.text(null=True, source="tenant.slug")
    role = shown.text()
