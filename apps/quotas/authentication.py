"""Authentication of API requests: a bearer token, or a page's session."""

import ipaddress
from typing import Any

from django.http import HttpRequest
from rest_framework import authentication, exceptions
from rest_framework.request import Request

from apps.quotas import principals
from apps.quotas.models import User
from apps.quotas.services import attempts, tokens


class BearerToken(authentication.BaseAuthentication):
    """Authentication by `Authorization: Bearer gpc_<key>.<secret>`."""

    def authenticate(self, request: Request) -> tuple[principals.Principal, Any] | None:
        """Return the token's principal. Raises AuthenticationFailed (401) for an invalid token.

        Wrong, expired and revoked tokens are invalid, and tokens from a network that they do not allow. After too many
        from one address, raises TooManyAttempts (429); valid tokens keep working there.
        """
        header = request.headers.get("Authorization")
        if header is None:
            return None
        scheme, _, text = header.partition(" ")
        if scheme.lower() != "bearer":
            raise exceptions.AuthenticationFailed("Use `Authorization: Bearer gpc_…`.")
        source_ip = source_of(request)
        token = tokens.find(text.strip(), source_ip=source_ip)
        if token is None:
            attempts.count_wrong_token(address=source_ip)
            raise exceptions.AuthenticationFailed("The token is wrong, expired, revoked, or not valid from here.")
        return principals.of_token(token, source_ip=source_ip), token

    def authenticate_header(self, request: Request) -> str:
        """Return the challenge of a 401."""
        return 'Bearer realm="gpucloud"'


class Session(authentication.SessionAuthentication):
    """Authentication by a page's session, with CSRF enforced."""

    def authenticate(self, request: Request) -> tuple[principals.Principal, None] | None:
        """Return the session's user as a principal."""
        found = super().authenticate(request)
        return found and (principals.of_user(found[0], source_ip=source_of(request)), None)


def find_session_user(session: Any, user: Any) -> User | None:
    """Return the user of a websocket's session, if neither has ended; asks the database, not the socket's memory."""
    if user is None or not user.is_authenticated or not session.exists(session.session_key):
        return None
    return User.objects.filter(pk=user.pk, is_active=True).first()


def source_of(request: Request | HttpRequest) -> str | None:
    """Return the peer's address; None behind a Unix socket or if the proxy sends an invalid address."""
    try:
        address = ipaddress.ip_address(request.META.get("REMOTE_ADDR", ""))
    except ValueError:
        return None
    # A dual-stack socket shows IPv4 as mapped IPv6 addresses, which no IPv4 network contains.
    return str(getattr(address, "ipv4_mapped", None) or address)
