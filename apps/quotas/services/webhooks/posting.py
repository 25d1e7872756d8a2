"""One POST to somebody else's server: to the address that was looked at, within a fixed time, reading a status only."""

import asyncio
import ssl
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from apps.quotas.services.webhooks import addresses
from apps.quotas.services.webhooks.addresses import Target, UrlRefused

if TYPE_CHECKING:
    import httpx

# In all: the name, the connection, TLS, the answer's head. Long enough for a receiver that stores before it answers.
SECONDS = 15.0
AGENT = "gpucloud-webhooks/1"


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back: a status, or in words why none did."""

    status: int | None
    error: str | None = None
    retry_after_seconds: int = 0

    @property
    def delivered(self) -> bool:
        """Every 2xx."""
        return self.status is not None and 200 <= self.status < 300

    @property
    def gone(self) -> bool:
        """The receiver asks to be told nothing more."""
        return self.status == 410


def post(url: str, body: bytes, headers: dict[str, str]) -> Answer:
    """Send it once. Never raises for what the other side does."""
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
        return Answer(None, f"{type(error).__name__}: {error}"[:300])


async def _post(target: Target, address: str, body: bytes, headers: dict[str, str]) -> Answer:
    import httpx  # noqa: PLC0415 - as above

    url = httpx.URL(target.url)
    sent = {"Content-Type": "application/json", "User-Agent": AGENT, **headers, "Host": url.netloc.decode("ascii")}
    async with (
        asyncio.timeout(SECONDS),
        # No proxy of the environment: it would resolve the name again, elsewhere.
        httpx.AsyncClient(verify=_trusted(), trust_env=False, follow_redirects=False, timeout=SECONDS) as client,
        client.stream(
            "POST",
            url.copy_with(host=address),
            content=body,
            headers=sent,
            # The certificate is the name's, whatever address the connection goes to.
            extensions={"sni_hostname": target.host},
        ) as answer,
    ):
        # The body is left unread: it could be without an end, and is not the webhook's owner's to see.
        ok = answer.is_success
        return Answer(answer.status_code, None if ok else f"Answered {answer.status_code}.", _retry_after(answer))


def _retry_after(answer: "httpx.Response") -> int:
    """In seconds; the form with a date is not taken."""
    text = answer.headers.get("retry-after", "")
    return min(int(text), 86_400) if text.isascii() and text.isdecimal() and len(text) < 10 else 0


@cache
def _trusted() -> ssl.SSLContext:
    """The public certificate authorities, or those that SSL_CERT_FILE or SSL_CERT_DIR name."""
    import httpx  # noqa: PLC0415 - as above

    return httpx.create_ssl_context()
