"""Refreshes of an open page's live fragment while changes follow one another."""

import json
import time

import pytest
from playwright.sync_api import Page, Request, WebSocketRoute

from tests.browser.conftest import Visitor
from tests.platform import PATIENCE_SECONDS

pytestmark = [pytest.mark.browser, pytest.mark.serial, pytest.mark.timeout(300)]

# As if inserting the fragment had kept the browser busy for this long.
BUSY = """() => document.body.addEventListener("htmx:afterSwap", () => {
    const begun = performance.now();
    while (performance.now() - begun < 400);
})"""


class Changes:
    """A page's websocket that sends a change ten times a second."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.refreshes = 0
        self._sockets: list[WebSocketRoute] = []
        page.route_web_socket("**/ws/live/**", self._open)
        page.on("request", self._count)

    def _open(self, socket: WebSocketRoute) -> None:
        self._sockets.append(socket)

    def _count(self, request: Request) -> None:
        self.refreshes += "hx-request" in request.headers

    def tell(self, seconds: float, *, until: int | None = None) -> int:
        """Send changes for so long, or until so many refreshes; return their number."""
        before, begun = self.refreshes, time.monotonic()
        while time.monotonic() - begun < seconds and (until is None or self.refreshes - before < until):
            for socket in self._sockets:
                socket.send(json.dumps({"type": "changed", "at": time.time()}))
            self.page.wait_for_timeout(100)
        return self.refreshes - before


def test_each_change_is_fetched_soon_and_a_burst_of_them_once(visitor: Visitor) -> None:
    changes = Changes(visitor.page)
    visitor.page.goto("/queue/")
    begun = time.monotonic()
    assert changes.tell(PATIENCE_SECONDS, until=5) == 5
    # The control of the next: fifty notices in five seconds are not fifty refreshes.
    assert time.monotonic() - begun > 2


def test_a_page_that_is_costly_to_refresh_rests_longer(visitor: Visitor) -> None:
    changes = Changes(visitor.page)
    visitor.page.goto("/queue/")
    visitor.page.evaluate(BUSY)
    assert changes.tell(PATIENCE_SECONDS, until=3) == 3
    assert changes.tell(4) <= 1
    # It is not forgotten: the next comes with the page's own timer.
    assert changes.tell(PATIENCE_SECONDS, until=1) == 1
