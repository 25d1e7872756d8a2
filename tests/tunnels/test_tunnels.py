"""Tunnels at the server: a client, its node and the tickets between them, through the whole ASGI application."""

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest
from asgiref.testing import ApplicationCommunicator
from django.utils import timezone
from msgspec import structs

from agent import wire
from apps.jobs.models import Job
from apps.quotas.models import AuditEvent, Token
from apps.tunnels import ends, rights, sockets
from gpucloud import hints
from gpucloud.asgi import application
from tests.cast import Cast, Machine, hello, token_for
from tests.jobs.acting import fresh, started
from tests.jobs.conftest import machine_of
from tests.nodes.agents import Agent, enrol_with, in_database
from tests.nodes.conftest import real_cast

__all__ = ["machine_of", "real_cast"]


class Socket:
    """One websocket at the application."""

    def __init__(self, path: str, query: bytes = b"", /, **headers: str) -> None:
        raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
        scope = {"type": "websocket", "path": path, "query_string": query, "headers": raw, "subprotocols": []}
        self.it = ApplicationCommunicator(application, scope)

    async def connect(self) -> "Socket":
        await self.it.send_input({"type": "websocket.connect"})
        assert (await self.it.receive_output(timeout=5))["type"] == "websocket.accept"
        return self

    async def refused(self) -> bool:
        """Return True if it is refused before it is accepted: nobody hears a word."""
        await self.it.send_input({"type": "websocket.connect"})
        message = await self.it.receive_output(timeout=5)
        await self.it.wait(timeout=5)
        return bool(message["type"] == "websocket.close" and not message["reason"])

    async def send(self, message: str | bytes) -> None:
        kind = "text" if isinstance(message, str) else "bytes"
        await self.it.send_input({"type": "websocket.receive", kind: message})

    async def hear(self) -> Any:
        message = await self.it.receive_output(timeout=10)
        assert message["type"] == "websocket.send", message
        return message.get("text") or message.get("bytes")

    async def closed(self) -> tuple[int, str]:
        message = await self.it.receive_output(timeout=10)
        assert message["type"] == "websocket.close", message
        return message["code"], message["reason"]

    async def leave(self) -> None:
        await self.it.send_input({"type": "websocket.disconnect", "code": 1000})
        await self.it.wait(timeout=5)


class Stage:
    """A running job, its node's agent, and who opens terminals."""

    def __init__(self, cast: Cast, machine: Machine, job: Job) -> None:
        self.cast, self.machine, self.job = cast, machine, job
        self.credential = f"gpn_{machine.node.uid}.secret"
        self.agent = Agent(machine, self.credential)

    async def client(self, token: str | None = None, uid: object = None) -> Socket:
        bearer = f"Bearer {self.cast.max.token if token is None else token}"
        return await Socket(f"/ws/jobs/{uid or self.job.uid}/terminal/", authorization=bearer).connect()

    async def asked(self) -> wire.Tunnel:
        """Return what the agent is asked to dial."""
        while not isinstance(frame := await self.agent.hear(), wire.Tunnel):
            pass
        return frame

    async def node(self, tunnel: str, ticket: str, credential: str | None = None) -> Socket:
        bearer = f"Bearer {credential or self.credential}"
        headers = {"x_gpucloud_tunnel": tunnel, "x_gpucloud_ticket": ticket}
        return await Socket("/ws/tunnel/", authorization=bearer, **headers).connect()

    async def both(self) -> tuple[Socket, Socket]:
        client = await self.client()
        frame = await self.asked()
        return client, await self.node(frame.uid, frame.ticket)


@pytest.fixture
async def stage(real_cast: Cast, machine_of: Machine) -> AsyncIterator[Stage]:
    """Return a running job of acme, on a node that knows tunnels."""

    def make() -> Job:
        enrol_with(machine_of, "secret")
        return started(real_cast, machine_of)

    it = Stage(real_cast, machine_of, await in_database(make))
    await it.agent.greet(structs.replace(hello(machine_of.name), jobs=True, tunnels=True))
    yield it
    await it.agent.hang_up()
    await hints.bus().close()


async def audited() -> list[str]:
    rows = AuditEvent.objects.filter(action__startswith="job.exec").order_by("pk").values_list("action", flat=True)
    return list(await in_database(lambda: list(rows)))


async def test_messages_pass_both_ways_as_they_came_and_it_is_recorded(stage: Stage) -> None:
    client, node = await stage.both()
    await client.send('{"columns": 80}')
    await client.send(b"ls\n")
    assert [await node.hear(), await node.hear()] == ['{"columns": 80}', b"ls\n"]
    await node.send(b"\x00\xff")
    await node.send(json.dumps({"exit": 3}))
    assert [await client.hear(), await client.hear()] == [b"\x00\xff", '{"exit": 3}']
    await node.leave()
    assert (await client.closed())[0] == sockets.CLOSE_OVER
    await client.it.wait(timeout=5)
    assert await audited() == ["job.exec", "job.exec-end"]


async def test_a_ticket_counts_once_and_for_its_node_only(stage: Stage) -> None:
    def other_node() -> str:
        other = Machine("gpu2", stage.cast.pool)
        enrol_with(other, "another")
        return f"gpn_{other.node.uid}.another"

    other = await in_database(other_node)
    client = await stage.client()
    frame = await stage.asked()
    for tunnel, ticket, credential in (
        (frame.uid, frame.ticket, other),
        (frame.uid, "x" * len(frame.ticket), None),
    ):
        refused = await stage.node(tunnel, ticket, credential)
        assert await refused.closed() == (sockets.CLOSE_DENIED, "the ticket is not valid for this node, or was used")
    node = await stage.node(frame.uid, frame.ticket)
    await node.send(b"first")
    assert await client.hear() == b"first"
    again = await stage.node(frame.uid, frame.ticket)
    assert (await again.closed())[0] == sockets.CLOSE_DENIED
    stranger = await stage.node(frame.uid, frame.ticket, "gpn_x.y")
    assert (await stranger.closed())[0] == sockets.CLOSE_DENIED
    await client.leave()
    await node.closed()


async def test_only_who_may_create_claims_in_the_tenant_opens_one(stage: Stage) -> None:
    cast = stage.cast

    def tokens() -> list[str]:
        return [token_for(cast.globex), token_for(cast.acme, "viewer"), token_for(cast.acme, scopes=["claims:read"])]

    foreign, viewer, reader = await in_database(tokens)
    assert (await (await stage.client(foreign)).closed())[0] == sockets.CLOSE_MISSING
    assert (await (await stage.client(uid=uuid.uuid4())).closed())[0] == sockets.CLOSE_MISSING
    for token in (viewer, reader, "gpc_abc.def"):
        assert (await (await stage.client(token)).closed())[0] == sockets.CLOSE_DENIED
    assert await audited() == []


async def test_it_ends_with_the_token_and_with_the_run(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "ASK_AGAIN_SECONDS", 0.1)
    client, node = await stage.both()
    await in_database(lambda: Job.objects.filter(pk=stage.job.pk).update(run_uid=uuid.uuid4()))
    assert (await client.closed())[1] == "The run has ended."
    assert (await node.closed())[1] == "The run has ended."
    client, node = await stage.both()
    await in_database(lambda: Token.objects.update(revoked_at=timezone.now()))
    assert "revoked" in (await client.closed())[1]
    await node.closed()


async def test_a_job_that_does_not_run_has_none(stage: Stage) -> None:
    await in_database(lambda: Job.objects.filter(pk=stage.job.pk).update(state="queued"))
    code, why = await (await stage.client()).closed()
    assert (code, "queued" in why) == (sockets.CLOSE_CONFLICT, True)
    assert (await in_database(lambda: fresh(stage.job))).state == "queued"


async def test_a_node_that_does_not_dial_is_said(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ends, "JOIN_SECONDS", 0.2)
    client = await stage.client()
    assert await client.closed() == (sockets.CLOSE_CONFLICT, ends.NO_ANSWER)


async def test_a_client_that_does_not_read_costs_one_window(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    client, node = await stage.both()
    taken: list[int] = []
    send = ends.End.send

    async def counted(self: ends.End, message: ends.Message) -> None:
        await send(self, message)
        taken.append(len(message.data))

    monkeypatch.setattr(ends.End, "send", counted)
    # A socket that is not read: the client's side waits with its first message.
    reading = asyncio.Event()
    give = ends.End.give_credit

    async def held(self: ends.End, cost: int) -> None:
        if isinstance(self, ends.ClientEnd):
            await reading.wait()
        await give(self, cost)

    monkeypatch.setattr(ends.End, "give_credit", held)
    for _ in range(64):
        await node.send(b"x" * (32 << 10))
    await asyncio.sleep(0.5)
    assert 0 < sum(taken) <= ends.WINDOW_BYTES
    reading.set()
    for _ in range(64):
        assert len(await client.hear()) == 32 << 10
    await client.leave()
    await node.closed()


async def test_a_lost_message_ends_it(stage: Stage) -> None:
    client, node = await stage.both()
    await node.send(b"a")
    assert await client.hear() == b"a"
    bus = hints.bus()
    group = next(name for name in bus._joined if name.startswith("tunnel-") and len(name) == len("tunnel-") + 36)
    bus.deliver(group, {"type": "data", "n": 3, "data": b"c", "text": False})
    assert (await client.closed())[1] == ends.LOST
    await node.closed()


async def test_a_person_has_a_bounded_number_open(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rights, "MOST_OF_ONE", 1)
    client, node = await stage.both()
    assert "close one of them" in (await (await stage.client()).closed())[1]
    await client.leave()
    await node.closed()
    client, node = await stage.both()
    await client.leave()
    await node.closed()
