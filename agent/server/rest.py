"""One JSON request to the control plane's REST API, with its refusals in words."""

import http.client
import ipaddress
import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping

MAX_ANSWER_BYTES = 1 << 20
TIMEOUT_SECONDS = 10.0


class Unreachable(Exception):
    """No answer, or none that counts (5xx, 429): trying again later may help."""


class Refused(Exception):
    """The server said no. `status` is HTTP's, the message is the problem's own words."""

    def __init__(self, status: int, words: str) -> None:
        super().__init__(words)
        self.status = status


def request(url: str, *, body: object = None, headers: Mapping[str, str] | None = None) -> object:
    """POST `body` as JSON, or GET without one; the answer's JSON. Raises Unreachable or Refused. Blocks."""
    data = None if body is None else json.dumps(body).encode()
    asked = urllib.request.Request(  # noqa: S310 - both callers check the scheme
        url, data=data, headers={"Accept": "application/json", **(headers or {})}
    )
    if data is not None:
        asked.add_header("Content-Type", "application/json")
    try:
        with opener(url).open(asked, timeout=TIMEOUT_SECONDS) as answer:
            text = answer.read(MAX_ANSWER_BYTES + 1)
    except urllib.error.HTTPError as error:
        with error:
            words = _words(error)
        if error.code >= 500 or error.code == 429:
            raise Unreachable(words) from error
        raise Refused(error.code, words) from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise Unreachable(f"{url} does not answer: {getattr(error, 'reason', error)}") from error
    try:
        parsed: object = json.loads(text)
    except ValueError as error:
        raise Unreachable(f"{url} answered something that is not JSON.") from error
    return parsed


def is_loopback(url: str) -> bool:
    """True for this machine's own addresses, which no proxy can reach for us."""
    host = urllib.parse.urlsplit(url).hostname or ""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def opener(url: str) -> urllib.request.OpenerDirector:
    """By the machine's proxy where it names one, never to this machine itself."""
    if is_loopback(url):
        return urllib.request.build_opener(urllib.request.ProxyHandler({}))
    return urllib.request.build_opener()


def _words(error: urllib.error.HTTPError) -> str:
    """The problem+json's title, detail and field errors, or the status line where there are none."""
    try:
        problem = json.loads(error.read(MAX_ANSWER_BYTES))
    except (OSError, ValueError):
        problem = None
    parts: list[str] = []
    if isinstance(problem, dict):
        parts = [str(problem[key]) for key in ("title", "detail") if problem.get(key)]
        fields = problem.get("errors")
        for name, why in fields.items() if isinstance(fields, dict) else ():
            parts.append(f"{name}: {' '.join(map(str, why)) if isinstance(why, list) else why}")
    words = " — ".join(parts) or error.reason
    return f"{words} (HTTP {error.code})"
