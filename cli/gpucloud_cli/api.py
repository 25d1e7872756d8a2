"""Client of the REST API: one request at a time, refusals as failures, lost requests retried if that is safe.

A retry is safe if it cannot have an effect twice: for GET and DELETE, for a POST (each carries an Idempotency-Key, the
same on every try), and for requests that never reached the server or that it refused to process (429, 503).
"""

import ipaddress
import random
import re
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import unquote, urlsplit

import httpx

from gpucloud_cli import __version__
from gpucloud_cli.access import Access
from gpucloud_cli.failures import Failure, Problem, Unknown, Unreachable, Usage

TIMEOUT_SECONDS = 30.0
PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.2, 3.0
PAGE = 200
# The server, or a proxy in front of it, did not process the request.
NOT_DONE = (429, 503)
PERHAPS_DONE = (500, 502, 504)
# Paths of tenants, organisations, pools and nodes, and below them.
PLACE = re.compile(r"/?(tenant|organisation|pool|node)s/([^/?]+)/(.*)")


@dataclass(frozen=True)
class Answer:
    """A response of the server."""

    status: int
    body: Any
    etag: str | None


class Lost(Exception):
    """A request without a usable response. `safe`: the server certainly did nothing."""

    def __init__(self, words: str, *, safe: bool, pause_seconds: float | None = None) -> None:
        super().__init__(words)
        self.safe = safe
        self.pause_seconds = pause_seconds


class Api:
    """Everything below /api/v1/ of one server, as one token may see it."""

    def __init__(
        self,
        access: Access,
        *,
        patience_seconds: float,
        timeout_seconds: float = TIMEOUT_SECONDS,
        options: Mapping[str, str] | None = None,
    ) -> None:
        self.url, self.token = access.url, access.token
        self._options = options or {}
        self.patience_seconds = patience_seconds
        self._client = httpx.Client(
            base_url=f"{access.url}/api/v1/",
            headers={
                "Authorization": f"Bearer {access.token}",
                "Accept": "application/json",
                "User-Agent": f"gpucloud/{__version__}",
            },
            timeout=timeout_seconds,
            # Reading certificates, which http does not use, is a sixth of a command's start.
            verify=not access.url.startswith("http:"),
            # Proxies are not used for this machine's own addresses.
            trust_env=not is_loopback(access.url),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def get(self, path: str, **parameters: Any) -> Answer:
        """Send a GET.

        Raises Problem or Unreachable, like every method here.
        """
        return self.request("GET", path, parameters=parameters)

    def post(
        self, path: str, body: Any, *, key: str | None = None, etag: str | None = None, **parameters: Any
    ) -> Answer:
        """Send a POST that takes effect once."""
        headers = {"Idempotency-Key": key or new_key(), **_if_match(etag)}
        return self.request("POST", path, body=body, parameters=parameters, headers=headers)

    def patch(self, path: str, body: Any, *, etag: str | None = None, **parameters: Any) -> Answer:
        """Send a PATCH that takes effect if the object is still at this version."""
        return self.request("PATCH", path, body=body, parameters=parameters, headers=_if_match(etag))

    def delete(self, path: str, *, etag: str | None = None, **parameters: Any) -> Answer:
        """Send a DELETE; a 404 on a retry counts as success."""
        return self.request("DELETE", path, parameters=parameters, headers=_if_match(etag))

    def rows(self, path: str, *, most: int | None = None, **parameters: Any) -> Iterator[dict[str, Any]]:
        """Yield a list's rows, page by page, up to a maximum."""
        wanted = {name: value for name, value in parameters.items() if value is not None}
        limit = PAGE if most is None else min(PAGE, most)
        answer = self.get(path, **wanted, limit=limit)
        count = 0
        while True:
            for row in answer.body["results"]:
                if count == most:
                    return
                count += 1
                yield row
            if not answer.body.get("next") or count == most:
                return
            # The server's link has its own idea of its address; only the query is used.
            answer = self.get(path, **dict(httpx.URL(answer.body["next"]).params))

    def request(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        parameters: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """Send a request and retry it while that is safe and patience lasts.

        Raises Usage for a path outside the API.
        """
        if "://" in path.partition("?")[0] or {".", ".."} & set(path.partition("?")[0].split("/")):
            # The token is for this server's API: an absolute address in place of the path would receive it too.
            raise Usage(f"{path} is no path below /api/v1/.")
        repeatable = method in ("GET", "DELETE") or "Idempotency-Key" in (headers or {})
        deadline, pause, lost_before = time.monotonic() + self.patience_seconds, PAUSE_SECONDS, False
        while True:
            try:
                return self._once(method, path, body, parameters, headers)
            except Problem as problem:
                if lost_before and method == "DELETE" and problem.status == 404:
                    return Answer(204, None, None)
                raise self._unknown(path, problem) from problem
            except Lost as lost:
                wait = lost.pause_seconds or pause * random.uniform(0.5, 1.0)  # noqa: S311 - only to spread the tries
                if not (repeatable or lost.safe) or time.monotonic() + wait > deadline:
                    raise Unreachable(str(lost)) from lost
                lost_before = lost_before or not lost.safe
                time.sleep(wait)
                pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    def _unknown(self, path: str, problem: Problem) -> Problem:
        """Return the problem itself, or that the tenant, organisation, pool or node in the path does not exist."""
        place = PLACE.fullmatch(path)
        if problem.status != 404 or place is None:
            return problem
        kind, name, below = place.groups()
        if not below:
            return Unknown(kind, unquote(name), problem)
        try:
            self.get(f"{kind}s/{name}/")
        except Unknown as unknown:
            return unknown
        except Failure:
            pass
        return problem

    def _once(self, method: str, path: str, body: Any, parameters: Any, headers: Any) -> Answer:
        wanted = {name: _parameter(value) for name, value in (parameters or {}).items() if value is not None}
        try:
            answer = self._client.request(
                method, path.lstrip("/"), json=body, params=wanted or None, headers=dict(headers or {})
            )
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as error:
            raise Lost(f"{self.url} does not answer: {error}", safe=True) from error
        except httpx.TransportError as error:
            raise Lost(f"{self.url} was lost: {str(error) or type(error).__name__}", safe=False) from error
        except (httpx.InvalidURL, httpx.DecodingError) as error:
            raise Failure(f"{self.url}: {error}") from error
        return self._check(answer)

    def _check(self, answer: httpx.Response) -> Answer:
        facts = _json(answer)
        if answer.is_redirect:
            raise Failure(
                f"{self.url} is elsewhere: it points to {answer.headers.get('Location')}. Give that as the URL."
            )
        if answer.is_success:
            if facts is None and answer.status_code != 204:
                raise Failure(f"What answers at {self.url} is no gpucloud server: its answer is not JSON.")
            return Answer(answer.status_code, facts, answer.headers.get("ETag"))
        described = facts if isinstance(facts, dict) else {"title": answer.reason_phrase}
        problem = Problem(answer.status_code, described, options=self._options)
        after = answer.headers.get("Retry-After", "")
        pause = float(after) if after.isdecimal() else None
        in_flight = problem.code == "idempotency-key-in-flight"
        if answer.status_code in NOT_DONE or in_flight:
            raise Lost(str(problem), safe=True, pause_seconds=pause)
        if answer.status_code in PERHAPS_DONE:
            raise Lost(str(problem), safe=False, pause_seconds=pause)
        raise problem


def new_key() -> str:
    """Return a new Idempotency-Key."""
    return f"cli-{uuid.uuid4()}"


def _if_match(etag: str | None) -> dict[str, str]:
    return {} if etag is None else {"If-Match": etag}


def _parameter(value: Any) -> Any:
    return str(value).lower() if isinstance(value, bool) else value


def _json(answer: httpx.Response) -> Any:
    try:
        return answer.json() if answer.content else None
    except ValueError:
        return None


def is_loopback(url: str) -> bool:
    """Return whether the URL is of this machine itself."""
    host = urlsplit(url).hostname or ""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
