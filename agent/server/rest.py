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
    """Missing answer, or one that may pass (5xx, 429): trying again later may help."""


class Refused(Exception):
    """Refusal by the server. `status` is HTTP's, the message is the problem's own words."""

    def __init__(self, status: int, words: str) -> None:
        super().__init__(words)
        self.status = status


def request(url: str, *, body: object = None, headers: Mapping[str, str] | None = None) -> object:
    """Send `body` as JSON (POST), or nothing (GET); return the answer's JSON. Raises Unreachable or Refused. Blocks."""
    data = None if body is None else json.dumps(body).encode()
    outgoing = urllib.request.Request(  # noqa: S310 - both callers check the scheme
        url, data=data, headers={"Accept": "application/json", **(headers or {})}
    )
    if data is not None:
        outgoing.add_header("Content-Type", "application/json")
    try:
        with opener(url).open(outgoing, timeout=TIMEOUT_SECONDS) as answer:
            text = answer.read(MAX_ANSWER_BYTES + 1)
    except urllib.error.HTTPError as error:
        with error:
            words = _describe_problem(error)
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
    """Return whether the URL is of this machine's own addresses, which no proxy can reach for us."""
    host = urllib.parse.urlsplit(url).hostname or ""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def opener(url: str) -> urllib.request.OpenerDirector:
    """Return an opener that uses the machine's proxy if it names one, but never for this machine itself."""
    if is_loopback(url):
        return urllib.request.build_opener(urllib.request.ProxyHandler({}))
    return urllib.request.build_opener()


def _describe_problem(error: urllib.error.HTTPError) -> str:
    """Return the problem+json's title, detail and field errors, or the status line if there are none."""
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
