"""/tokens/ and /audit/."""

from typing import Any

from django_filters import rest_framework as filters
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from apps.quotas.api import serializers
from apps.quotas.api.views import ApiView, ListMixin
from apps.quotas.idempotency import idempotent
from apps.quotas.models import AuditEvent, Tenant, Token, User
from apps.quotas.principals import Principal
from apps.quotas.services import tokens
from gpucloud.api import etags
from gpucloud.api.filters import Changed, Named


class TokenFilter(Changed):
    """Tokens by tenant, name and role."""

    tenant = filters.CharFilter(field_name="tenant__slug")

    class Meta:
        model = Token
        fields = ["tenant", "name", "role", "updated_since"]


class TokenList(ListMixin):
    """API tokens."""

    serializer_class = serializers.TokenSerializer
    filterset_class = TokenFilter
    read_scope, write_scope = "tokens:read", "tokens:write"

    def get_queryset(self) -> Any:
        """Return the rows visible to the caller."""
        return Token.objects.visible_to(self.principal).select_related("tenant", "user")

    def get(self, request: Request) -> Response:
        """List tokens; their secrets are never shown again."""
        return self.list_page(self.get_queryset())

    @extend_schema(responses={201: serializers.NewTokenSerializer})
    @idempotent
    def post(self, request: Request) -> Response:
        """Create a token. The response is the only place that shows its text."""
        token, text = tokens.create(principal=self.principal, user=_maker(self.principal), **self.parse_body(request))
        return show_once(token, text)


class TokenDetail(ApiView):
    """One token."""

    serializer_class = serializers.TokenSerializer
    lookup_key = "key"
    read_scope, write_scope = "tokens:read", "tokens:write"

    def get_queryset(self) -> Any:
        """Return the rows visible to the caller."""
        return Token.objects.visible_to(self.principal).select_related("tenant", "user")

    def get(self, request: Request, key: str) -> Response:
        """Show a token, without its secret."""
        return self.answer(self.find(key))

    @extend_schema(responses={204: None})
    def delete(self, request: Request, key: str) -> Response:
        """Revoke a token immediately."""
        tokens.revoke(principal=self.principal, token=self.find(key), versions=etags.if_match(request))
        return Response(status=204)


class TokenRotation(ApiView):
    """Rotation of a token."""

    serializer_class = serializers.RotationSerializer
    lookup_key = "key"
    write_scope = "tokens:write"

    def get_queryset(self) -> Any:
        """Return the rows visible to the caller."""
        return Token.objects.visible_to(self.principal)

    @extend_schema(responses={201: serializers.NewTokenSerializer})
    @idempotent
    def post(self, request: Request, key: str) -> Response:
        """Create a successor of this token, which ends after the overlap. The new text is shown once."""
        old = self.find(key)
        token, text = tokens.rotate(
            principal=self.principal,
            token=old,
            user=_maker(self.principal),
            versions=etags.if_match(request),
            **self.parse_body(request),
        )
        return show_once(token, text)


def _maker(principal: Principal) -> User | None:
    """Return the user on whose behalf a new token acts."""
    return User.objects.filter(pk=principal.user_id).first() if principal.user_id else None


def show_once(token: Token, text: str) -> Response:
    """Return a new token with its text."""
    body = {**serializers.TokenSerializer(token).data, "token": text}
    return Response(body, status=201, headers={"ETag": etags.etag(token.version), "Cache-Control": "no-store"})


class AuditFilter(filters.FilterSet):
    """Audit events by tenant, actor, object and time."""

    tenant = Named(Tenant.objects, "slug")
    since = filters.IsoDateTimeFilter(field_name="at", lookup_expr="gte")
    until = filters.IsoDateTimeFilter(field_name="at", lookup_expr="lt")

    class Meta:
        model = AuditEvent
        fields = ["tenant", "actor", "action", "object_type", "object_id", "since", "until"]


class AuditList(ListMixin):
    """The audit log."""

    serializer_class = serializers.AuditSerializer
    filterset_class = AuditFilter
    read_scope = "audit:read"

    def get_queryset(self) -> Any:
        """Return the rows visible to the caller."""
        return AuditEvent.objects.visible_to(self.principal).select_related("tenant")

    def get(self, request: Request) -> Response:
        """List audit events, newest first."""
        return self.list_page(self.get_queryset())
