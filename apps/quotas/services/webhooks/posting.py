"""One POST to a webhook's server: to the checked address, within a fixed time, reading only the status."""

import asyncio
import socket
import ssl
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from apps.quotas.services.webhooks import addresses
from apps.quotas.services.webhooks.addresses import Target, UrlRefused

if TYPE_CHECKING:
    import httpx

# Total time: name, connection, TLS, response head. Long enough for a receiver that stores before it responds.
SECONDS = 15.0
AGENT = "gpucloud-webhooks/1"


@dataclass(frozen=True, slots=True)
class Answer:
    """A response's status, or the reason why there is none."""

    status: int | None
    error: str | None = None
    retry_after_seconds: int = 0

    @property
    def delivered(self) -> bool:
        """True for every 2xx."""
        return self.status is not None and 200 <= self.status < 300

    @property
    def gone(self) -> bool:
        """True if the receiver wants no further messages."""
        return self.status == 410


def post(url: str, body: bytes, headers: dict[str, str]) -> Answer:
    """Send once. Never raises for failures of the receiver."""
    import httpx  # noqa: PLC0415 - loaded by the worker that sends, not by every server that has this page

    try:
        target = addresses.parse(url)
        address = addresses.resolve(target)
        return asyncio.run(_post(target, str(address), body, headers))
    except UrlRefused as error:
        return Answer(None, error.detail[:300])
    except TimeoutError:
        return Answer(None, f"No answer within {SECONDS:g} s.")
    except (httpx.HTTPError, httpx.InvalidURL, OSError, UnicodeError) as error:
        return Answer(None, _in_words(error, url))


def _in_words(error: Exception, url: str) -> str:
    """Return what failed, without the path of the URL, and what to look at."""
    parts = urlsplit(url)
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, (socket.gaierror, ssl.SSLError, ConnectionRefusedError)):
        cause = cause.__cause__ or cause.__context__
    if isinstance(cause, socket.gaierror):
        return f"The name {parts.hostname} is unknown: check the URL, or the server's name service."
    if isinstance(cause, ssl.SSLError):
        why = getattr(cause, "verify_message", "") or cause.reason
        return f"TLS failed: {why}. Check the server's certificate."[:300]
    if isinstance(cause, ConnectionRefusedError):
        return f"Nothing listens on port {parts.port or (443 if parts.scheme == 'https' else 80)} of {parts.hostname}."
    return f"{type(error).__name__}: {error}".replace(url, addresses.origin(url))[:300]


async def _post(target: Target, address: str, body: bytes, headers: dict[str, str]) -> Answer:
    import httpx  # noqa: PLC0415 - as above

    url = httpx.URL(target.url)
    sent = {"Content-Type": "application/json", "User-Agent": AGENT, **headers, "Host": url.netloc.decode("ascii")}
    async with (
        asyncio.timeout(SECONDS),
        # No proxy from the environment: it would resolve the name again.
        httpx.AsyncClient(verify=_trusted(), trust_env=False, follow_redirects=False, timeout=SECONDS) as client,
        client.stream(
            "POST",
            url.copy_with(host=address),
            content=body,
            headers=sent,
            # TLS verifies the certificate of the host name, not of the address.
            extensions={"sni_hostname": target.host},
        ) as answer,
    ):
        # The body is not read: it could be endless, and the webhook's owner must not see it.
        ok = answer.is_success
        return Answer(answer.status_code, None if ok else f"Answered {answer.status_code}.", _retry_after(answer))


def _retry_after(answer: "httpx.Response") -> int:
    """Return the header in seconds; the form with a date is ignored."""
    text = answer.headers.get("retry-after", "")
    return min(int(text), 86_400) if text.isascii() and text.isdecimal() and len(text) < 10 else 0


@cache
def _trusted() -> ssl.SSLContext:
    """Return the context with the public authorities, or those of SSL_CERT_FILE or SSL_CERT_DIR."""
    import httpx  # noqa: PLC0415 - as above

    return httpx.create_ssl_context()
