"""/users/, /invitations/, /me/ with its sessions and tokens."""

from typing import Any

from django.core.exceptions import ValidationError as RulesBroken
from django.db.models import QuerySet
from django.http import Http404
from django_filters import rest_framework as filters
from drf_spectacular.utils import extend_schema
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from apps.quotas.api import people_serializers, serializers
from apps.quotas.api.methods import lists
from apps.quotas.api.tokens import TOKEN_FILTERS, show_once
from apps.quotas.api.views import ApiView, ListMixin
from apps.quotas.idempotency import idempotent
from apps.quotas.models import Invitation, Token, User
from apps.quotas.services import accounts, invitations, mail, resets, tokens
from gpucloud.api.filters import filters_of


def with_roles(users: QuerySet[User]) -> QuerySet[User]:
    """Fetch what a list of users shows, by name."""
    return users.prefetch_related("memberships__tenant", "identities").order_by("username")


class UserList(ListMixin):
    """Users."""

    serializer_class = people_serializers.UserSerializer
    filterset_class = filters_of(
        User,
        "username",
        base=filters.FilterSet,
        active=filters.BooleanFilter(field_name="is_active"),
        operator=filters.BooleanFilter(field_name="is_operator"),
        tenant="tenants__slug",
    )
    read_scope = "users:read"

    def get_queryset(self) -> Any:
        """Return the rows visible to the caller."""
        return User.visible_to(self.principal).prefetch_related("memberships__tenant", "identities")

    get = lists("List users: all to an operator, the members of their tenants to admins, themselves to others.")


class UserDetail(ApiView):
    """One user."""

    serializer_class = people_serializers.UserSerializer
    lookup_key = "username"
    read_scope, write_scope = "users:read", "users:write"
    tagged = False

    def get_queryset(self) -> Any:
        """Return the rows visible to the caller."""
        return User.visible_to(self.principal).prefetch_related("memberships__tenant", "identities")

    def get(self, request: Request, username: str) -> Response:
        """Show a user."""
        return Response(self.get_serializer(self.find(username)).data)

    def patch(self, request: Request, username: str) -> Response:
        """Deactivate or activate a user, or change the operator's role. Operators only.

        Deactivation ends the user's sessions and revokes their tokens at once.
        """
        user = self.find(username)
        self.principal.require_operator()
        values = self.parse_body(request, partial=True)
        if "is_operator" in values:
            accounts.set_operator(principal=self.principal, user=user, operator=values["is_operator"])
        if "is_active" in values:
            accounts.set_active(principal=self.principal, user=user, active=values["is_active"])
        return Response(self.get_serializer(self.find(username)).data)


class PasswordReset(ApiView):
    """A link to set a user's password."""

    serializer_class = people_serializers.LinkSerializer
    lookup_key = "username"
    write_scope = "users:write"
    tagged = False

    def get_queryset(self) -> Any:
        """Return the rows visible to the caller."""
        return User.visible_to(self.principal)

    @extend_schema(request=None, responses={201: people_serializers.LinkSerializer})
    @idempotent
    def post(self, request: Request, username: str) -> Response:
        """Make a link with which the user sets a new password. Operators only; it is shown once and works once."""
        self.without_body(request)
        path, end = resets.make_link(principal=self.principal, user=self.find(username))
        body = {"link": request.build_absolute_uri(path), "expires_at": end}
        return Response(self.get_serializer(body).data, status=201, headers={"Cache-Control": "no-store"})


class InvitationList(ListMixin):
    """Invitations."""

    serializer_class = people_serializers.InvitationSerializer
    filterset_class = filters_of(Invitation, "username", "email", base=filters.FilterSet, tenant="tenant__slug")
    read_scope, write_scope = "users:read", "users:write"
    queryset = Invitation.objects.select_related("tenant")

    get = lists("List invitations; their links are never shown again.")

    @extend_schema(responses={201: people_serializers.NewInvitationSerializer})
    @idempotent
    def post(self, request: Request) -> Response:
        """Invite a person. The response is the only place that shows the link; it works once."""
        invitation, secret = invitations.invite(principal=self.principal, **self.parse_body(request))
        link = request.build_absolute_uri(invitations.path_of(secret))
        sent = bool(invitation.email) and mail.send_invitation(
            address=invitation.email, link=link, inviter=invitation.created_by.removeprefix("user:")
        )
        body = {**people_serializers.InvitationSerializer(invitation).data, "link": link, "mailed": sent}
        return Response(body, status=201, headers={"Cache-Control": "no-store"})


class InvitationDetail(ApiView):
    """One invitation."""

    serializer_class = people_serializers.InvitationSerializer
    lookup_key = "uid"
    read_scope, write_scope = "users:read", "users:write"
    tagged = False
    queryset = Invitation.objects.select_related("tenant")

    def get(self, request: Request, uid: object) -> Response:
        """Show an invitation, without its link."""
        return Response(self.get_serializer(self.find(uid)).data)

    @extend_schema(responses={204: None})
    def delete(self, request: Request, uid: object) -> Response:
        """Revoke an invitation."""
        invitations.revoke(principal=self.principal, invitation=self.find(uid))
        return Response(status=204)


class Me(ApiView):
    """The caller."""

    serializer_class = serializers.MeSerializer
    filter_backends = []
    pagination_class = None
    write_scope = "users:write"
    tagged = False

    def get(self, request: Request) -> Response:
        """Show the caller's identity, scopes and roles."""
        return Response(self.get_serializer(self.principal).data)

    @extend_schema(request=people_serializers.MeChangeSerializer)
    def patch(self, request: Request) -> Response:
        """Set the caller's time zone. Needs a person: a session, or a personal token."""
        user = tokens.require_own_rights(self.principal)
        body = people_serializers.MeChangeSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        try:
            accounts.set_time_zone(principal=self.principal, user=user, name=body.validated_data["time_zone"])
        except RulesBroken as error:
            raise ValidationError({"time_zone": error.messages}) from error
        return self.get(request)


class MySessions(ApiView):
    """The caller's sessions."""

    serializer_class = people_serializers.SessionSerializer
    read_scope, write_scope = "users:read", "users:write"
    filter_backends = []
    pagination_class = None
    tagged = False

    @extend_schema(responses=people_serializers.SessionSerializer(many=True))
    def get(self, request: Request) -> Response:
        """List the caller's sessions, last used first."""
        user = tokens.require_own_rights(self.principal)
        found = accounts.sessions_of(user, current=_session_key(request))
        return Response(self.get_serializer(found, many=True).data)

    @extend_schema(operation_id="me_sessions_end_others", responses={204: None})
    def delete(self, request: Request) -> Response:
        """End all of the caller's sessions but the one of this request."""
        user = tokens.require_own_rights(self.principal)
        accounts.end_sessions(principal=self.principal, user=user, keep=_session_key(request))
        return Response(status=204)


class MySession(ApiView):
    """One of the caller's sessions."""

    serializer_class = people_serializers.SessionSerializer
    write_scope = "users:write"
    tagged = False

    @extend_schema(responses={204: None})
    def delete(self, request: Request, session: str) -> Response:
        """End one of the caller's sessions."""
        # For a token without a person no session exists.
        if not self.principal.own_rights:
            raise Http404("There is no such session of yours.")
        user = tokens.require_own_rights(self.principal)
        if not accounts.end_sessions(principal=self.principal, user=user, only=session):
            raise Http404("There is no such session of yours.")
        return Response(status=204)


class MyTokens(ListMixin):
    """The caller's personal tokens."""

    serializer_class = people_serializers.PersonalTokenSerializer
    read_scope, write_scope = "tokens:read", "tokens:write"
    filterset_class = TOKEN_FILTERS

    def get_queryset(self) -> Any:
        """Return the caller's personal tokens."""
        if getattr(self, "swagger_fake_view", False):
            return Token.objects.none()
        owner = tokens.require_own_rights(self.principal)
        return Token.objects.filter(user=owner, personal=True).select_related("tenant", "user")

    @extend_schema(responses=serializers.TokenSerializer(many=True))
    def get(self, request: Request) -> Response:
        """List the caller's personal tokens; DELETE /tokens/{key}/ revokes one."""
        page = self.paginate_queryset(self.filter_queryset(self.get_queryset()))
        return self.get_paginated_response(serializers.TokenSerializer(page, many=True).data)

    @extend_schema(responses={201: serializers.NewTokenSerializer})
    @idempotent
    def post(self, request: Request) -> Response:
        """Create a token with the caller's own rights. The response is the only place that shows its text."""
        tokens.require_own_rights(self.principal)
        token, text = tokens.create_personal(principal=self.principal, **self.parse_body(request))
        return show_once(token, text)


def _session_key(request: Request) -> str | None:
    return request.session.session_key if request.auth is None else None
