"""A living part that looks the same to many is made once for all of them, and for no longer than a second.

Two hundred open pages ask for the same part every few seconds, and all at once when a claim changes. A page that was
told of a change says when (`X-Not-Before`): what was begun before that is not for it, so nobody sees the old state
after the notice. Others get what is a second old, which is as often as agents measure.
"""

import threading
import time
from collections.abc import Callable, Hashable
from functools import wraps
from typing import Concatenate, Final, NamedTuple, ParamSpec

from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.utils.cache import patch_vary_headers
from django.utils.text import compress_string
from django.utils.translation import get_language

from apps.console.shell.page_access import wants_fragment
from apps.quotas.principals import Principal

P = ParamSpec("P")
PageView = Callable[Concatenate[HttpRequest, Principal, P], HttpResponseBase]

FRESH_SECONDS: Final = 1.0
# Kinds of reader: operators, and each set of tenants; the oldest goes first.
MOST_KEPT: Final = 200
# As Django pads what it compresses, so that its length tells nothing.
PADDING: Final = 100


class Made(NamedTuple):
    """A part as it was at some moment between its beginning and its end (Unix seconds)."""

    begun: float
    ended: float
    content: bytes


class Part:
    """What was made last. Whoever needs something newer while it is being made waits for that."""

    def __init__(self) -> None:
        self.making = threading.Lock()
        self.last = Made(0.0, 0.0, b"")

    def newer_than(self, told: float, make: Callable[[], bytes]) -> bytes:
        """What was begun after that moment (Unix seconds) and is fresh, made now where there is nothing.

        Its age counts from its end: where many ask for what takes longer than a second, each that waited for it would
        find it old already, and make it again.
        """
        if (content := self._fresh(told)) is not None:
            return content
        with self.making:
            if (content := self._fresh(told)) is None:
                begun = time.time()
                content = make()
                self.last = Made(begun, time.time(), content)
            return content

    def _fresh(self, told: float) -> bytes | None:
        last, now = self.last, time.time()
        # A clock that was put back would keep it young for ever.
        return last.content if told <= last.begun and now - FRESH_SECONDS <= last.ended <= now else None


_parts: dict[Hashable, Part] = {}
_changing = threading.Lock()


def shared(view: PageView[P]) -> PageView[P]:
    """For views whose living part depends on nothing of a person but what they may see. Whole pages are made anew."""

    @wraps(view)
    def door(request: HttpRequest, principal: Principal, /, *args: P.args, **kwargs: P.kwargs) -> HttpResponseBase:
        if not wants_fragment(request) or "gzip" not in request.headers.get("Accept-Encoding", ""):
            return view(request, principal, *args, **kwargs)

        def make() -> bytes:
            response = view(request, principal, *args, **kwargs)
            assert isinstance(response, HttpResponse)
            return compress_string(response.content, max_random_bytes=PADDING)

        part = _part_of(_reader(request, principal))
        response = HttpResponse(part.newer_than(_not_before(request), make), headers={"Content-Encoding": "gzip"})
        patch_vary_headers(response, ["Accept-Encoding"])
        return response

    return door


def _part_of(reader: Hashable) -> Part:
    with _changing:
        while len(_parts) >= MOST_KEPT and reader not in _parts:
            _parts.pop(next(iter(_parts)))
        return _parts.setdefault(reader, Part())


def _reader(request: HttpRequest, principal: Principal) -> Hashable:
    who = principal.is_operator, frozenset(principal.roles.items())
    return who, request.scheme, request.get_host(), request.get_full_path(), get_language()


def _not_before(request: HttpRequest) -> float:
    """When its page was told of the newest change; nothing is newer than this moment."""
    try:
        told = float(request.headers.get("X-Not-Before", ""))
    except ValueError:
        told = 0.0
    return min(time.time(), told)
