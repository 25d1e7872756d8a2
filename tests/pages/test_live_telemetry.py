"""Telemetry on open pages: each page gets its own, and unwatched telemetry is not sent."""

import json
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from asgiref.testing import ApplicationCommunicator
from django.conf import settings
from django.test import Client

from agent import wire
from apps.console.shell import live
from apps.nodes.services.telemetry.storing import Measured, source_of, store
from apps.quotas.models import Tenant, User
from apps.scheduling import events, watching
from apps.scheduling.models import Claim
from gpucloud import hints
from gpucloud.asgi import application
from tests.cast import Cast, Machine, give_plenty, gpu_uuid, placed
from tests.scheduling.asgi_client import in_database


@pytest.fixture(autouse=True)
async def bus_is_closed() -> AsyncIterator[None]:
    """Close the bus: its connections belong to the event loop, and each test has its own loop."""
    yield
    await hints.bus().close()


class Page:
    """An open page of this user."""

    def __init__(self, name: str, query: str) -> None:
        client = Client()
        client.force_login(User.objects.get(username=name))
        cookie = f"sessionid={client.cookies[settings.SESSION_COOKIE_NAME].value}"
        headers = [(b"origin", b"http://localhost"), (b"host", b"localhost"), (b"cookie", cookie.encode())]
        facts = {"path": "/ws/live/", "query_string": query.encode(), "headers": headers, "subprotocols": []}
        self.socket = ApplicationCommunicator(application, {"type": "websocket", **facts})

    async def open(self, *groups: str) -> "Page":
        await self.socket.send_input({"type": "websocket.connect"})
        assert (await self.socket.receive_output(timeout=10))["type"] == "websocket.accept"
        end = time.monotonic() + 10
        while not set(groups) <= (await watching.read_watched()).keys():
            assert time.monotonic() < end
            await self.socket.receive_nothing(timeout=0.1)
        return self

    async def hear(self) -> Any:
        return json.loads((await self.socket.receive_output(timeout=10))["text"])

    async def quiet(self) -> bool:
        return bool(await self.socket.receive_nothing(timeout=0.3))

    async def shut(self) -> None:
        await self.socket.send_input({"type": "websocket.disconnect", "code": 1000})
        await self.socket.wait(timeout=10)


def stage(cast: Cast) -> tuple[Machine, Claim, Claim]:
    """Create one GPU with a claim of each tenant."""
    give_plenty(cast.acme, cast.globex)
    machine = Machine("gpu1", cast.pool, gpus=1)
    return machine, of(cast, machine, cast.acme), of(cast, machine, cast.globex)


def of(cast: Cast, machine: Machine, tenant: Tenant) -> Claim:
    return placed(cast, machine, tenant=tenant, name=f"of-{tenant.slug}")[0]


def store_frame(machine: Machine, *claims: Claim) -> list[Measured]:
    """Store a frame of the node that names every claim."""
    usage = wire.Usage(
        seq=7,
        at=time.time(),
        gpus=[wire.GpuUsage(uuid=gpu_uuid("gpu1", 0), core_percent=80, memory_bytes=2)],
        assignments=[
            wire.AssignmentUsage(
                uid=str(claim.assignments.get().uid), core_percent=40, core_limit_percent=50, throttled_percent=0,
                memory_bytes=1, memory_limit_bytes=2, processes=1,
            )
            for claim in claims
        ],
    )  # fmt: skip
    batch = [Measured(source_of(machine.node), usage)]
    store(batch)
    return batch


async def test_each_page_gets_what_it_watches_and_nothing_of_another_tenant(real_cast: Cast) -> None:
    machine, acmes, globexs = await in_database(lambda: stage(real_cast))
    anna = await (await in_database(lambda: Page("anna", f"claim={acmes.uid}"))).open(events.claim_group(acmes.uid))
    gus = await (await in_database(lambda: Page("gus", f"claim={globexs.uid}"))).open(events.claim_group(globexs.uid))
    olga = await (await in_database(lambda: Page("olga", "node=gpu1"))).open(events.node_group(machine.node.uid))
    await watching.show(await in_database(lambda: store_frame(machine, acmes, globexs)))
    for page, claim in ((anna, acmes), (gus, globexs)):
        heard = await page.hear()
        assert [item["claim"] for item in heard["assignments"]] == [str(claim.uid)]
        assert (heard["type"], heard["seq"], "gpus" in heard) == ("usage", 7, False)
        assert await page.quiet()
    heard = await olga.hear()
    assert {item["claim"] for item in heard["assignments"]} == {str(acmes.uid), str(globexs.uid)}
    assert [gpu["core_percent"] for gpu in heard["gpus"]] == [80]
    for page in (anna, gus, olga):
        await page.shut()


async def test_a_page_of_anothers_claim_is_closed_and_told_nothing(real_cast: Cast) -> None:
    machine, acmes, globexs = await in_database(lambda: stage(real_cast))
    page = await (await in_database(lambda: Page("gus", f"claim={acmes.uid}"))).open()
    assert (await page.socket.receive_output(timeout=10))["code"] == live.CLOSE_DENIED
    await watching.show(await in_database(lambda: store_frame(machine, acmes, globexs)))
    assert await page.quiet()
    await page.shut()


async def test_what_nobody_watches_is_sent_to_nobody(real_cast: Cast, monkeypatch: pytest.MonkeyPatch) -> None:
    machine, acmes, globexs = await in_database(lambda: stage(real_cast))
    batch = await in_database(lambda: store_frame(machine, acmes, globexs))
    await watching.watch([events.claim_group(acmes.uid)])
    assert [group for group, _ in watching._messages(batch, (await watching.read_watched()).keys())] == [
        events.claim_group(acmes.uid)
    ]
    assert list(watching._messages(batch, set())) == []
