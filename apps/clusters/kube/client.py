"""Client of one API server: raw lists, watches, patches. The library provides credentials and TLS."""

import json
import socket
from collections.abc import Generator, Iterator, Mapping
from typing import Any
from urllib.parse import urlencode

import msgspec
import urllib3

from apps.clusters.kube.objects import Event, Page, Status
from gpucloud.errors import Busy, Conflict

# Timeout of a request: the extender's caller waits for it.
ANSWER_SECONDS = 10.0
# API servers send each watch a bookmark once a minute, as soon as anything of its kind has changed since it began.
# After a longer silence the API server is asked whether it is there.
SILENCE_SECONDS = 75.0
# A peer that is gone is noticed within 45 s also while nothing is sent; the library's own options take 165 s.
KEEPALIVE = [
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 15),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
]
PAGE = 500
MERGE_PATCH = "application/merge-patch+json"
MISSING = 404
# Longer pauses than this are not waited for, whatever Retry-After says.
MOST_PAUSE_SECONDS = 300.0


class Unreachable(Busy, code="cluster-unreachable", title="The cluster does not answer"):
    """The API server does not answer."""


class Silent(Unreachable):
    """The watch got nothing for SILENCE_SECONDS, not even a bookmark."""


class Refused(Conflict, code="cluster-refused", title="The cluster refused this"):
    """The API server refused the request; `status` is its code.

    `pause_seconds`: the time after which the API server wants to be asked again (Retry-After); 0: it does not say.
    """

    def __init__(self, status: int, reason: str, message: str, *, pause_seconds: float = 0.0) -> None:
        super().__init__(f"The cluster answered {status} {reason}: {message}", status_of_cluster=status, reason=reason)
        self.status, self.reason, self.message, self.pause_seconds = status, reason, message, pause_seconds

    @property
    def worth_another_try(self) -> bool:
        """True if the same request may succeed in a moment."""
        return self.status in (409, 429, 500, 503, 504)


class Gone(Refused):
    """The version to watch from is expired: list again."""


class Client:
    """Client of one API server with the credentials of `kubeconfig`; None: those of this process's pod."""

    # Timeout of connecting, and of an answer.
    patience_seconds = ANSWER_SECONDS
    silence_seconds = SILENCE_SECONDS

    def __init__(self, kubeconfig: Mapping[str, Any] | None) -> None:
        # Imported late: the library takes a fifth of a server's start, and few processes need it.
        from kubernetes import client, config  # noqa: PLC0415

        configuration = client.Configuration()
        # The caller decides about retries.
        configuration.retries = urllib3.Retry(total=0, redirect=0)
        configuration.socket_options = KEEPALIVE
        if kubeconfig is None:
            config.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
        else:
            config.load_kube_config_from_dict(  # type: ignore[no-untyped-call]
                dict(kubeconfig), client_configuration=configuration, persist_config=False
            )
        self._configuration = configuration
        self._pool: Any = client.ApiClient(configuration).rest_client.pool_manager

    def version(self) -> str:
        """Return the version of Kubernetes, e.g. `v1.36.1`. Raises Unreachable, Refused."""
        return str(self.get("/version").get("gitVersion", ""))

    def get(self, path: str, **query: str) -> dict[str, Any]:
        """Return one object. Raises Unreachable, Refused."""
        found: dict[str, Any] = json.loads(self._answer("GET", path, query))
        return found

    def find(self, path: str) -> dict[str, Any] | None:
        """Return one object, or None. Raises Unreachable, Refused."""
        try:
            return self.get(path)
        except Refused as error:
            if error.status == MISSING:
                return None
            raise

    def labels_of(self, namespace: str) -> dict[str, str]:
        """Return the namespace's labels. Raises Unreachable, Refused."""
        return self.get(f"/api/v1/namespaces/{namespace}")["metadata"].get("labels") or {}

    def post(self, path: str, body: Mapping[str, Any]) -> bytes:
        """Create an object. Raises Unreachable, Refused."""
        return self._answer("POST", path, {}, json.dumps(body).encode())

    def patch(self, path: str, body: Mapping[str, Any], *, content_type: str = MERGE_PATCH) -> bytes:
        """Change an object and return the new one. Raises Unreachable, Refused."""
        return self._answer("PATCH", path, {}, json.dumps(body).encode(), content_type=content_type)

    def put(self, path: str, body: Mapping[str, Any]) -> bytes:
        """Replace an object. Raises Unreachable, Refused."""
        return self._answer("PUT", path, {}, json.dumps(body).encode())

    def delete(self, path: str, *, uid: str | None = None) -> bytes:
        """Delete an object; with `uid` only if the name is still its. Raises Unreachable, Refused."""
        only = None if uid is None else json.dumps({"preconditions": {"uid": uid}}).encode()
        return self._answer("DELETE", path, {}, only)

    def list(self, path: str, **query: str) -> tuple[list[msgspec.Raw], str]:
        """Return all objects, page by page, and the version to watch from. Raises Unreachable, Refused."""
        items: list[msgspec.Raw] = []
        version = ""
        for page in self.pages(path, **query):
            items += page.items or ()
            version = page.metadata.resource_version
        return items, version

    def pages(self, path: str, **query: str) -> Iterator[Page]:
        """Yield all objects, page by page; each has the version to watch from. Raises Unreachable, Refused."""
        query["limit"] = str(PAGE)
        while True:
            page = msgspec.json.decode(self._answer("GET", path, query), type=Page)
            yield page
            if not page.metadata.next:
                return
            query["continue"] = page.metadata.next

    def watch(self, path: str, version: str, *, seconds: int, **query: str) -> Generator[Event, None, None]:
        """Yield changes since that version for `seconds`. Raises Silent, Unreachable, Refused, Gone."""
        query |= {"watch": "1", "allowWatchBookmarks": "true", "resourceVersion": version}
        response = self._send("GET", path, {**query, "timeoutSeconds": str(seconds)}, seconds=self.silence_seconds)
        try:
            for line in _lines(response):
                event = msgspec.json.decode(line, type=Event)
                if event.type == "ERROR":
                    raise _refusal(event.object)
                yield event
        except urllib3.exceptions.ReadTimeoutError as error:
            raise Silent(f"The watch was silent for {self.silence_seconds:g} s.") from error
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise Unreachable(f"The watch was interrupted: {error}") from error
        finally:
            response.close()

    def _answer(
        self, method: str, path: str, query: Mapping[str, str], body: bytes | None = None, **options: Any
    ) -> bytes:
        response = self._send(method, path, query, body, **options)
        try:
            return bytes(response.read())
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise Unreachable(f"The response was interrupted: {error}") from error
        finally:
            response.release_conn()

    def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        body: bytes | None = None,
        *,
        content_type: str = "application/json",
        seconds: float | None = None,
    ) -> Any:
        settings: Any = self._configuration.auth_settings().values()
        headers = {str(item["key"]): str(item["value"]) for item in settings if item["value"]}
        headers |= {"Accept": "application/json", "User-Agent": "gpucloud"}
        if body is not None:
            headers["Content-Type"] = content_type
        url = f"{self._configuration.host}{path}" + (f"?{urlencode(query)}" if query else "")
        patience = self.patience_seconds
        timeout = urllib3.Timeout(connect=patience, read=patience if seconds is None else seconds)
        try:
            response = self._pool.request(
                method, url, body=body, headers=headers, timeout=timeout, preload_content=False, redirect=False
            )
            if response.status >= 300:
                text = response.read()
                response.release_conn()
                raise _refusal(text, response.status, response.headers.get("Retry-After", ""))
        except (urllib3.exceptions.HTTPError, OSError) as error:
            # The cause behind all attempts, without their list.
            raise Unreachable(f"The API server does not answer: {getattr(error, 'reason', None) or error}") from error
        return response


def _lines(response: Any) -> Iterator[bytes]:
    rest = b""
    # read1 returns what has arrived: an event must not wait for a full buffer.
    for chunk in iter(lambda: response.read1(1 << 16), b""):
        *whole, rest = (rest + chunk).split(b"\n")
        yield from (line for line in whole if line.strip())


def _refusal(text: bytes | msgspec.Raw, code: int = 0, retry_after: str = "") -> Refused:
    try:
        status = msgspec.json.decode(text, type=Status)
    except msgspec.DecodeError:
        status = Status(message=bytes(text)[:300].decode(errors="replace"))
    code = status.code or code
    # The header may be a date, too, which API servers never write.
    pause = float(retry_after) if retry_after.isdecimal() else status.details.retry_after_seconds
    kind = Gone if code == 410 else Refused
    return kind(code, status.reason, status.message, pause_seconds=min(pause, MOST_PAUSE_SECONDS))
