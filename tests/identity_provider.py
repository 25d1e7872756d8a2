"""A real OpenID provider on loopback: discovery, consent, tokens signed with its key, userinfo.

The package's provider accepts PKCE's challenge and ignores it later: here the token endpoint requires the verifier, as
production providers do.
"""

import base64
import hashlib
import io
import re
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qs, urlsplit

import authlib.deprecate  # noqa: F401 - it switches its warnings on: before, not while, they are switched off
import requests

with warnings.catch_warnings():
    # The provider uses deprecated names of the library, which is not our concern.
    warnings.simplefilter("ignore")
    import oidc_provider_mock
    from oidc_provider_mock import _app as inside

Wsgi = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]
CLIENT_ID = "gpucloud"
CLIENT_SECRET = "hush"
__all__ = ["CLIENT_ID", "CLIENT_SECRET", "IdentityProvider", "inside", "query_of", "running"]


class InsistOnPkce:
    """A middleware that stores each code's challenge and refuses a token request without its verifier."""

    def __init__(self, provider: Wsgi) -> None:
        self.provider = provider
        # Broken answers by path.
        self.broken: dict[str, bytes] = {}
        self.challenges: dict[str, str] = {}

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if environ["PATH_INFO"] == "/oauth2/token" and not self._fits(environ):
            start_response("400 Bad Request", [("Content-Type", "application/json")])
            return [b'{"error": "invalid_grant"}']
        if (said := self.broken.get(environ["PATH_INFO"])) is not None:
            start_response("200 OK", [("Content-Type", "application/json")])
            return [said]
        asked = parse_qs(environ["QUERY_STRING"])

        def started(status: str, headers: list[tuple[str, str]], *rest: Any) -> Any:
            code = re.search(r"[?&]code=([^&]+)", dict(headers).get("Location", ""))
            if code and asked.get("code_challenge_method") == ["S256"]:
                self.challenges[code[1]] = asked["code_challenge"][0]
            return start_response(status, headers, *rest)

        return self.provider(environ, started)

    def _fits(self, environ: dict[str, Any]) -> bool:
        body = environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"] or 0))
        environ["wsgi.input"] = io.BytesIO(body)
        sent = {name: values[0] for name, values in parse_qs(body.decode()).items()}
        digest = hashlib.sha256(sent.get("code_verifier", "").encode()).digest()
        shown = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        return self.challenges.pop(sent.get("code", ""), None) == shown


class IdentityProvider:
    """The provider, and its people."""

    def __init__(self, issuer: str, broken: dict[str, bytes]) -> None:
        self.issuer, self.broken = issuer, broken

    def person(self, subject: str, **claims: Any) -> None:
        requests.put(f"{self.issuer}/users/{subject}", json=claims, timeout=5).raise_for_status()

    def consent(self, url: str, subject: str | None) -> str:
        """Sign in as `subject`, or (None) refuse; return the redirect."""
        form = {"sub": subject} if subject else {"action": "deny"}
        answer = requests.post(url, data=form, allow_redirects=False, timeout=5)
        assert answer.status_code == 302, answer.text
        return answer.headers["Location"]


@contextmanager
def running() -> Iterator[IdentityProvider]:
    with oidc_provider_mock.run_server_in_thread(require_nonce=True) as server:
        front = InsistOnPkce(server.app)
        server.app = front
        yield IdentityProvider(f"http://localhost:{server.server_port}", front.broken)


def query_of(url: str) -> dict[str, str]:
    return {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}
