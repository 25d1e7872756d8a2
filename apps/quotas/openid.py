"""OpenID Connect client: authorization code flow with state, nonce and PKCE, configured by discovery.

The library (Authlib) implements the protocol; this module adds further checks: discovery names the configured issuer,
the ID token is signed with one of its keys and issued for this client, and userinfo has the same subject. Discovery is
read at each sign-in, so a provider that moves or changes its keys needs no restart here.
"""

from typing import Any

from authlib.common.errors import AuthlibBaseError
from authlib.integrations.django_client import OAuth, OAuthError
from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext_noop
from joserfc.errors import JoseError
from requests import RequestException

from apps.quotas.services.people import SignOnRefused

# A user waits for it, and reloads after longer.
TIMEOUT_SECONDS = 5
SIGNATURES = ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]
# Exceptions of the library and the network for an unreachable or misbehaving provider.
FAULTS = (
    AuthlibBaseError, JoseError, RequestException, ValueError, LookupError, TypeError, AttributeError, RuntimeError,
)  # fmt: skip


def is_configured() -> bool:
    """Return True if a provider is configured."""
    return bool(settings.OIDC_ISSUER)


def begin(request: HttpRequest, *, return_to: str) -> HttpResponse:
    """Redirect the browser to the provider, which redirects it back to `return_to`. Raises SignOnRefused."""
    try:
        answer: HttpResponse = _client().authorize_redirect(request, return_to)
    except FAULTS as error:
        raise SignOnRefused(
            gettext_noop("The identity provider does not answer: try again, or use a password.")
        ) from error
    return answer


def claims_of(request: HttpRequest) -> dict[str, Any]:
    """Return the verified claims of the returning user. Raises SignOnRefused, with the cause chained for the log."""
    try:
        return _verified_claims(request)
    except OAuthError as error:
        if error.error == "access_denied":
            raise SignOnRefused(
                gettext_noop("You cancelled at the identity provider, or it did not let you through.")
            ) from error
        raise SignOnRefused(gettext_noop("This sign-in is not valid any more: begin again.")) from error
    except FAULTS as error:
        raise SignOnRefused(
            gettext_noop("The identity provider's answer cannot be trusted: tell an operator.")
        ) from error


def _verified_claims(request: HttpRequest) -> dict[str, Any]:
    client = _client()
    wanted = {
        "iss": {"essential": True, "value": settings.OIDC_ISSUER},
        "aud": {"essential": True, "value": settings.OIDC_CLIENT_ID},
    }
    token = client.authorize_access_token(request, claims_options=wanted)
    claims = dict(token["userinfo"])  # from the ID token; absent if the provider sent none
    if "userinfo_endpoint" in client.server_metadata:
        more = client.userinfo(token=token)
        if more.get("sub") != claims["sub"]:
            raise ValueError("userinfo speaks of somebody else")
        claims = {**more, **claims}
    return claims


def _client() -> Any:
    issuer = settings.OIDC_ISSUER.rstrip("/")
    client = OAuth().register(
        "oidc",
        client_id=settings.OIDC_CLIENT_ID,
        client_secret=settings.OIDC_CLIENT_SECRET or None,
        server_metadata_url=f"{issuer}/.well-known/openid-configuration",
        client_kwargs={
            "scope": " ".join(settings.OIDC_SCOPES),
            "code_challenge_method": "S256",
            "default_timeout": TIMEOUT_SECONDS,
        },
    )
    found = client.load_server_metadata()
    if found["issuer"] != settings.OIDC_ISSUER:
        raise ValueError(f"discovery names the issuer {found['issuer']}")
    # The provider's list is not trusted: "none" and keyed digests are not signatures.
    offered = found.get("id_token_signing_alg_values_supported", ["RS256"])
    # Never an empty list: the library would then accept keyed digests.
    found["id_token_signing_alg_values_supported"] = [name for name in offered if name in SIGNATURES] or ["RS256"]
    return client
