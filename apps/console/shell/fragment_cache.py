"""A cache that shares a live fragment between viewers with equal permissions, for at most a second.

Two hundred open pages ask for the same fragment every few seconds, and all at once when a claim changes. A page that
was notified of a change sends the time (`X-Not-Before`): a fragment that was begun before is not used for it, so no
page shows the old state after the notice. Others get a fragment at most a second old, which is as often as agents
measure.
"""

import threading
import time
from collections.abc import Callable, Hashable
from functools import wraps
from typing import Concatenate, Final, NamedTuple, ParamSpec

from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.utils.cache import patch_vary_headers
from django.utils.text import compress_string
from django.utils.timezone import get_current_timezone_name
from django.utils.translation import get_language

from apps.console.shell.page_access import wants_fragment
from apps.quotas.principals import Principal

P = ParamSpec("P")
PageView = Callable[Concatenate[HttpRequest, Principal, P], HttpResponseBase]

FRESH_SECONDS: Final = 1.0
# Kinds of reader: operators, and each set of tenants; the oldest is dropped first.
MOST_KEPT: Final = 200
# As Django pads what it compresses, so that the length reveals nothing.
PADDING: Final = 100


class Rendering(NamedTuple):
    """A rendered fragment, with the beginning and the end of its rendering (Unix seconds)."""

    begun: float
    ended: float
    content: bytes


class Fragment:
    """The last rendering of one fragment. A viewer that needs a newer one waits for a rendering in progress."""

    def __init__(self) -> None:
        self.making = threading.Lock()
        self.last = Rendering(0.0, 0.0, b"")

    def newer_than(self, not_before: float, make: Callable[[], bytes]) -> bytes:
        """Return a fresh fragment begun after this moment (Unix seconds); render one if there is none.

        Its age counts from its end: with many viewers of a fragment that takes longer than a second, each that waited
        for it would find it too old, and render it again.
        """
        if (content := self._fresh(not_before)) is not None:
            return content
        with self.making:
            if (content := self._fresh(not_before)) is None:
                begun = time.time()
                content = make()
                self.last = Rendering(begun, time.time(), content)
            return content

    def _fresh(self, not_before: float) -> bytes | None:
        last, now = self.last, time.time()
        # A clock that was put back would keep it young for ever.
        return last.content if not_before <= last.begun and now - FRESH_SECONDS <= last.ended <= now else None


_fragments: dict[Hashable, Fragment] = {}
_changing = threading.Lock()


def share_fragment(view: PageView[P]) -> PageView[P]:
    """Cache the fragment of a view that depends only on its reader's permissions. Whole pages are not cached."""

    @wraps(view)
    def cached(request: HttpRequest, principal: Principal, /, *args: P.args, **kwargs: P.kwargs) -> HttpResponseBase:
        if not wants_fragment(request) or "gzip" not in request.headers.get("Accept-Encoding", ""):
            return view(request, principal, *args, **kwargs)

        def make() -> bytes:
            response = view(request, principal, *args, **kwargs)
            assert isinstance(response, HttpResponse)
            return compress_string(response.content, max_random_bytes=PADDING)

        fragment = _fragment_of(_reader(request, principal))
        response = HttpResponse(fragment.newer_than(_not_before(request), make), headers={"Content-Encoding": "gzip"})
        patch_vary_headers(response, ["Accept-Encoding"])
        return response

    return cached


def _fragment_of(reader: Hashable) -> Fragment:
    with _changing:
        while len(_fragments) >= MOST_KEPT and reader not in _fragments:
            _fragments.pop(next(iter(_fragments)))
        return _fragments.setdefault(reader, Fragment())


def _reader(request: HttpRequest, principal: Principal) -> Hashable:
    who = principal.is_operator, frozenset(principal.roles.items())
    return who, request.scheme, request.get_host(), request.get_full_path(), get_language(), get_current_timezone_name()


def _not_before(request: HttpRequest) -> float:
    """Return the time of the newest change that the page was notified of, at most the present."""
    try:
        not_before = float(request.headers.get("X-Not-Before", ""))
    except ValueError:
        not_before = 0.0
    return min(time.time(), not_before)
