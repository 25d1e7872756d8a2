"""/tokens/ and /audit/."""

from django_filters import rest_framework as filters
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from apps.quotas.api import serializers
from apps.quotas.api.methods import lists, removes, shows
from apps.quotas.api.views import ApiView, ListMixin
from apps.quotas.idempotency import idempotent
from apps.quotas.models import AuditEvent, Tenant, Token, User
from apps.quotas.principals import Principal
from apps.quotas.services import tokens
from gpucloud.api import etags
from gpucloud.api.filters import Named, filters_of

TOKEN_FILTERS = filters_of(Token, "name", "role", tenant="tenant__slug")


class TokenList(ListMixin):
    """API tokens."""

    serializer_class = serializers.TokenSerializer
    filterset_class = TOKEN_FILTERS
    read_scope, write_scope = "tokens:read", "tokens:write"
    queryset = Token.objects.select_related("tenant", "user")

    get = lists("List tokens; their secrets are never shown again.")

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
    queryset = Token.objects.select_related("tenant", "user")

    get = shows("Show a token, without its secret.")
    delete = removes(tokens.revoke, "token", "Revoke a token immediately.")


class TokenRotation(ApiView):
    """Rotation of a token."""

    serializer_class = serializers.RotationSerializer
    lookup_key = "key"
    write_scope = "tokens:write"
    queryset = Token.objects.all()

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


class AuditList(ListMixin):
    """The audit log."""

    serializer_class = serializers.AuditSerializer
    filterset_class = filters_of(
        AuditEvent,
        "actor",
        "action",
        "object_type",
        "object_id",
        base=filters.FilterSet,
        tenant=Named(Tenant.objects, "slug"),
        since=filters.IsoDateTimeFilter(field_name="at", lookup_expr="gte"),
        until=filters.IsoDateTimeFilter(field_name="at", lookup_expr="lt"),
    )
    read_scope = "audit:read"
    queryset = AuditEvent.objects.select_related("tenant")

    get = lists("List audit events, newest first.")
