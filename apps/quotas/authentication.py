"""How a request to the API says who it is: a bearer token, or a page's session."""

import ipaddress
from typing import Any

from django.http import HttpRequest
from rest_framework import authentication, exceptions
from rest_framework.request import Request

from apps.quotas import principals
from apps.quotas.services import attempts, tokens


class BearerToken(authentication.BaseAuthentication):
    """`Authorization: Bearer gpc_<key>.<secret>`."""

    def authenticate(self, request: Request) -> tuple[principals.Principal, Any] | None:
        """Raises AuthenticationFailed (401) for a token that is wrong, expired, revoked or from elsewhere.

        After too many of these from one address, TooManyAttempts (429); right tokens go on working there.
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
        """What a 401 asks for."""
        return 'Bearer realm="gpucloud"'


class Session(authentication.SessionAuthentication):
    """A page's session, with CSRF enforced."""

    def authenticate(self, request: Request) -> tuple[principals.Principal, None] | None:
        """The session's person as a principal."""
        found = super().authenticate(request)
        return found and (principals.of_user(found[0], source_ip=source_of(request)), None)


def source_of(request: Request | HttpRequest) -> str | None:
    """The peer's address; None behind a Unix socket, or where a proxy sends something that is no address."""
    try:
        address = ipaddress.ip_address(request.META.get("REMOTE_ADDR", ""))
    except ValueError:
        return None
    # A socket of both families shows IPv4 in IPv6's clothes: no network of IPv4 would hold it.
    return str(getattr(address, "ipv4_mapped", None) or address)
