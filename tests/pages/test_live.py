"""Messages to open pages, and the end of their authorization."""

import json
import time
from collections.abc import AsyncIterator

import pytest
from asgiref.testing import ApplicationCommunicator
from django.conf import settings
from django.db import OperationalError
from django.test import Client

from apps.console.shell import live
from apps.quotas.models import User
from apps.scheduling import events
from gpucloud import hints
from gpucloud.asgi import application
from tests.cast import Cast
from tests.scheduling.asgi_client import in_database

CHANGED = {"type": "claim.changed", "uid": "a-claim"}


@pytest.fixture(autouse=True)
async def bus_is_closed() -> AsyncIterator[None]:
    """Close the bus: its connections belong to the event loop, and each test has its own loop."""
    yield
    await hints.bus().close()


def signed_in(who: str = "anna") -> Client:
    client = Client()
    client.force_login(User.objects.get(username=who))
    return client


def page_of(client: Client, query: bytes = b"claims=all") -> ApplicationCommunicator:
    cookie = f"sessionid={client.cookies[settings.SESSION_COOKIE_NAME].value}"
    headers = [(b"origin", b"http://localhost"), (b"host", b"localhost"), (b"cookie", cookie.encode())]
    facts = {"path": "/ws/live/", "query_string": query, "headers": headers, "subprotocols": []}
    return ApplicationCommunicator(application, {"type": "websocket", **facts})


async def opened(client: Client) -> ApplicationCommunicator:
    page = page_of(client)
    await page.send_input({"type": "websocket.connect"})
    assert (await page.receive_output(timeout=10))["type"] == "websocket.accept"
    return page


async def publish_to(page: ApplicationCommunicator, group: str) -> None:
    """Publish until it is received: a socket is accepted before it has joined."""
    while await page.receive_nothing(timeout=0.2):
        await hints.bus().publish([(group, CHANGED)])


async def close_code(page: ApplicationCommunicator) -> int:
    """Return the close code; earlier messages are skipped."""
    while (last := await page.receive_output(timeout=10))["type"] == "websocket.send":
        pass
    await page.send_input({"type": "websocket.disconnect", "code": 1000})
    await page.wait(timeout=10)
    return int(last["code"])


async def test_a_page_that_is_signed_out_is_told_of_no_more_claims(
    real_cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "ASK_AGAIN_SECONDS", -1.0)
    client = await in_database(signed_in)
    page = await opened(client)
    group = events.claims_group(real_cast.acme.pk)
    await publish_to(page, group)
    told = json.loads((await page.receive_output(timeout=10))["text"])
    assert (told["type"], told["uid"]) == ("changed", "a-claim")
    assert abs(told["at"] - time.time()) < 60
    await in_database(client.logout)
    await hints.bus().publish([(group, CHANGED)])
    assert await close_code(page) == live.CLOSE_DENIED


async def test_a_page_that_cannot_be_told_is_closed_and_comes_again(
    real_cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = await opened(await in_database(signed_in))
    group = events.claims_group(real_cast.acme.pk)
    await publish_to(page, group)

    def away(*asked: object) -> tuple[str, ...]:
        raise OperationalError("the server is restarting")

    monkeypatch.setattr(live, "ASK_AGAIN_SECONDS", -1.0)
    monkeypatch.setattr(live, "_groups", away)
    await hints.bus().publish([(group, CHANGED)])
    assert await close_code(page) == live.CLOSE_FAILED


async def test_what_nothing_can_be_called_is_watched_by_nobody(real_cast: Cast) -> None:
    client = await in_database(lambda: signed_in("olga"))
    for query in (b"node=%00", b"claim=%00", b"claims=%00"):
        page = page_of(client, query)
        await page.send_input({"type": "websocket.connect"})
        assert (await page.receive_output(timeout=10))["type"] == "websocket.accept"
        assert await close_code(page) == live.CLOSE_DENIED
