"""Idempotency-Key on POST: a repeated request gets the first response, and its effect happens once.

The record is written in the same transaction as the effect, so neither exists without the other. While the first
request is in progress a second one with the key is refused: an advisory lock of the transaction detects it, and
disappears with a crashed process.
"""

import functools
import hashlib
import json
from collections.abc import Callable
from typing import Any, Protocol, cast

from django.db import connection, transaction
from rest_framework.request import Request
from rest_framework.response import Response

from apps.quotas.models import IdempotencyRecord
from apps.quotas.principals import Principal
from gpucloud.commits import ending_early
from gpucloud.errors import Busy, Invalid

HEADER = "Idempotency-Key"
MAX_LENGTH = 200
KEPT_HEADERS = ("ETag", "Location")
# Secrets are shown once and never stored: a repeated response has null instead.
SECRETS = ("token", "enrolment_token", "command", "secret", "link")


class KeyReused(Invalid, code="idempotency-key-reused", title="The Idempotency-Key was used for something else"):
    """The key was used for another request."""


class KeyInFlight(
    Busy, code="idempotency-key-in-flight", title="The first request with this Idempotency-Key is under way"
):
    """The first request with this key is in progress."""


class View(Protocol):
    """POST method of a view.

    A view with `ending` commits early (`gpucloud.commits`), and may leave its last steps there.
    """

    idempotent: bool

    def __call__(self, view: Any, request: Request, **kwargs: Any) -> Response: ...


def idempotent(post: Callable[..., Response]) -> Callable[..., Response]:
    """Wrap a view's `post` in one transaction, and with the header in a stored response."""

    @functools.wraps(post)
    def wrapper(view: Any, request: Request, **kwargs: Any) -> Response:
        key = request.headers.get(HEADER)
        if key is not None and not (0 < len(key) <= MAX_LENGTH and key.isprintable()):
            raise Invalid(f"{HEADER} must be 1 to {MAX_LENGTH} printable characters.")
        if hasattr(view, "ending"):
            with ending_early() as view.ending:
                return act(view, request, key, kwargs)
        with transaction.atomic():
            return act(view, request, key, kwargs)

    def act(view: Any, request: Request, key: str | None, kwargs: dict[str, Any]) -> Response:
        if key is None:
            return post(view, request, **kwargs)
        return _once(key, request, lambda: post(view, request, **kwargs))

    cast(View, wrapper).idempotent = True
    return wrapper


def _once(key: str, request: Request, act: Callable[[], Response]) -> Response:
    principal = cast(Principal, request.user)
    digest = _digest(request)
    exclusive = _lock(f"{principal.pk}\n{key}")
    # Read after the lock attempt: its holder may be another repetition of a request that was answered long ago.
    record = IdempotencyRecord.objects.filter(principal=principal.pk, key=key).first()
    if record is None and not exclusive:
        raise KeyInFlight("Ask again in a second: the answer will be the first request's.", status=409)
    if record is None:
        answer = act()
        IdempotencyRecord.objects.create(
            principal=principal.pk,
            key=key,
            request_digest=digest,
            status=answer.status_code,
            body=_without_secrets(answer.data),
            headers={name: answer.headers[name] for name in KEPT_HEADERS if name in answer.headers},
        )
        return answer
    if record.request_digest != digest:
        raise KeyReused("The same key came with another method, path or body: use a new key for a new request.")
    return Response(record.body, status=record.status, headers={**record.headers, "Idempotency-Replayed": "true"})


def _without_secrets(data: Any) -> Any:
    body = json.loads(json.dumps(data, default=str))
    return {name: None if name in SECRETS else value for name, value in body.items()}


def _digest(request: Request) -> str:
    # Both spellings of a route are equal: `path_info` has its slash, `path` is as received.
    # A preview (`?dry_run=`) differs from the change itself; `wait` makes no difference.
    query = sorted(item for item in request.query_params.items() if item[0] != "wait")
    text = json.dumps([request.method, request.path_info, query, request.data], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def _lock(name: str) -> bool:
    number = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], signed=True)
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_xact_lock(%s)", [number])
        return bool(cursor.fetchone()[0])
