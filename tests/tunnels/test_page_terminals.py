"""Terminals of pages: the session's cookie, only from the server's own origin, with credit for what is drawn."""

import asyncio
import json
from typing import Any

import pytest
from django.conf import settings
from django.test import Client

from apps.quotas.models import AuditEvent, Membership, User
from apps.tunnels import ends, sockets
from tests.jobs.conftest import machine_of
from tests.nodes.agents import in_database
from tests.nodes.conftest import real_cast
from tests.tunnels.test_tunnels import Socket, Stage, stage

__all__ = ["machine_of", "real_cast", "stage"]

HOST = "gpus.example.org:8443"
OWN = f"http://{HOST}"


@pytest.fixture(autouse=True)
def host(settings: Any) -> None:
    """Serve under a name with a port."""
    settings.ALLOWED_HOSTS += ["gpus.example.org", "other.example.org"]


async def cookie_of(name: str) -> str:
    """Return the cookie of a new session."""

    def sign_in() -> str:
        client = Client()
        client.force_login(User.objects.get(username=name))
        return f"{settings.SESSION_COOKIE_NAME}={client.cookies[settings.SESSION_COOKIE_NAME].value}"

    return str(await in_database(sign_in))


def page(stage: Stage, cookie: str, *, origin: str | None = OWN, query: bytes = b"", host: str = HOST) -> Socket:
    """Return the websocket that a page would open."""
    headers = {"host": host, "cookie": cookie} | ({} if origin is None else {"origin": origin})
    return Socket(f"/ws/jobs/{stage.job.uid}/terminal/", query, **headers)


async def test_a_page_opens_a_terminal_by_its_session(stage: Stage) -> None:
    client = await page(stage, await cookie_of("max")).connect()
    frame = await stage.asked()
    node = await stage.node(frame.uid, frame.ticket)
    await client.send('{"columns": 80, "rows": 24}')
    assert await node.hear() == '{"columns": 80, "rows": 24}'
    await node.send(b"$ ")
    assert await client.hear() == b"$ "
    await client.leave()
    await node.closed()
    actors = await in_database(lambda: {row.actor for row in AuditEvent.objects.filter(action="job.exec")})
    assert actors == {"user:max"}


@pytest.mark.parametrize(
    "origin",
    [
        None,
        "null",
        "https://evil.example.org",
        # Another server of the same host, the same server by another scheme, and another name that is allowed.
        "http://gpus.example.org:9000",
        "http://gpus.example.org",
        f"https://{HOST}",
        "http://other.example.org:8443",
    ],
)
async def test_another_sites_page_opens_none_although_the_browser_sends_the_cookie(
    stage: Stage, origin: str | None
) -> None:
    cookie = await cookie_of("max")
    assert await page(stage, cookie, origin=origin).refused()
    # The control: nothing but the origin was wrong.
    client = await page(stage, cookie).connect()
    await stage.asked()
    await client.leave()


async def test_a_host_that_is_not_the_servers_is_no_origin(stage: Stage) -> None:
    cookie = await cookie_of("max")
    assert await page(stage, cookie, host="evil.example.org", origin="http://evil.example.org").refused()


async def test_who_may_not_act_in_the_tenant_is_told_why(stage: Stage) -> None:
    for name, code, word in (
        ("gus", sockets.CLOSE_MISSING, "no job"),
        ("vera", sockets.CLOSE_DENIED, "role"),
    ):
        socket = await page(stage, await cookie_of(name)).connect()
        said = await socket.closed()
        assert (said[0], word in said[1]) == (code, True), said
    socket = await page(stage, "sessionid=0123456789abcdefghijklmnopqrstuv").connect()
    assert "signed in" in (await socket.closed())[1]


async def _end_session() -> None:
    await in_database(lambda: User.objects.get(username="max").sessions.all().delete())


async def _deactivate() -> None:
    await in_database(lambda: User.objects.filter(username="max").update(is_active=False))


async def _demote() -> None:
    await in_database(lambda: Membership.objects.filter(user__username="max").update(role="viewer"))


@pytest.mark.parametrize("take", [_end_session, _deactivate, _demote])
async def test_it_ends_with_the_session_the_user_and_the_role(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, take: Any
) -> None:
    monkeypatch.setattr(sockets, "ASK_AGAIN_SECONDS", 0.1)
    client = await page(stage, await cookie_of("max")).connect()
    frame = await stage.asked()
    node = await stage.node(frame.uid, frame.ticket)
    await node.send(b"$ ")
    assert await client.hear() == b"$ "
    await take()
    assert (await client.closed())[0] == sockets.CLOSE_OVER
    await node.closed()


async def test_a_page_that_draws_slowly_holds_the_program_up(stage: Stage) -> None:
    client = await page(stage, await cookie_of("max"), query=b"shown=1").connect()
    frame = await stage.asked()
    node = await stage.node(frame.uid, frame.ticket)
    for _ in range(64):
        await node.send(b"x" * (32 << 10))
    # It reads everything, and draws nothing.
    most = ends.WINDOW_BYTES // (32 << 10)
    read = 0
    while read < most - 1:
        read += len(await client.hear()) // (32 << 10)
    await asyncio.sleep(0.5)
    while not client.it.output_queue.empty():
        await client.hear()
        read += 1
    assert read <= most
    # What is drawn makes room for as much; what it has not got, it cannot have drawn.
    await client.send(json.dumps({"shown": 10_000}))
    while read < 2 * most - 2:
        read += len(await client.hear()) // (32 << 10)
    await asyncio.sleep(0.5)
    while not client.it.output_queue.empty():
        await client.hear()
        read += 1
    assert read <= 2 * most
    # It is the page's news only: the node gets sizes and keys as ever.
    await client.send('{"columns": 100, "rows": 30}')
    await client.send(b"q")
    assert [await node.hear(), await node.hear()] == ['{"columns": 100, "rows": 30}', b"q"]
    await client.leave()
    await node.closed()
