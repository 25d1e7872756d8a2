"""OpenID Connect, from our side: the authorization code flow with state, nonce and PKCE, found by discovery.

The library (Authlib) speaks the protocol; here stands what must hold besides: the issuer that discovery names is the
one that was configured, the ID token is signed with one of its keys and made for us, and what userinfo adds is the same
person's. Discovery is asked at each sign-in: a provider that moves or changes its keys needs no restart here.
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

# A person waits for it: longer, and they reload.
TIMEOUT_SECONDS = 5
SIGNATURES = ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]
# What the library and the network raise where a provider is away or answers nonsense.
FAULTS = (
    AuthlibBaseError, JoseError, RequestException, ValueError, LookupError, TypeError, AttributeError, RuntimeError,
)  # fmt: skip


def is_configured() -> bool:
    """Whether people can sign in this way."""
    return bool(settings.OIDC_ISSUER)


def begin(request: HttpRequest, *, return_to: str) -> HttpResponse:
    """Send the browser to the provider, which sends it back to `return_to`. Raises SignOnRefused."""
    try:
        answer: HttpResponse = _client().authorize_redirect(request, return_to)
    except FAULTS as error:
        raise SignOnRefused(
            gettext_noop("The identity provider does not answer: try again, or use a password.")
        ) from error
    return answer


def claims_of(request: HttpRequest) -> dict[str, Any]:
    """Who came back, as the provider says and proves. Raises SignOnRefused, with the cause chained for the log."""
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
    claims = dict(token["userinfo"])  # of the ID token; absent where the provider sent none
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
    # What the provider offers is its own statement: "none" and keyed digests are not signatures.
    offered = found.get("id_token_signing_alg_values_supported", ["RS256"])
    # None that is one: an empty list would let the library choose, and it knows keyed digests.
    found["id_token_signing_alg_values_supported"] = [name for name in offered if name in SIGNATURES] or ["RS256"]
    return client
