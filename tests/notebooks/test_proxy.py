"""The proxy of notebooks at the server: entries and their end, and bytes through real tunnels to a stand-in of Jupyter.

Real Jupyter is behind it in tests/e2e/test_notebooks.py; here a server is in its place that says what it was asked.
"""

import asyncio
import contextlib
import json
import uuid
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlencode

import pytest
from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY
from msgspec import structs

from agent import wire
from apps.jobs.models import Job
from apps.notebooks import admission, entries, hosts, streams
from apps.quotas.models import AuditEvent, Membership, User, UserSession
from apps.quotas.sessions import SessionStore
from apps.tunnels import ends
from gpucloud import hints
from gpucloud.asgi import application
from tests.cast import Cast, Machine, hello
from tests.jobs.acting import started
from tests.jobs.conftest import machine_of
from tests.nodes.agents import Agent, enrol_with, in_database
from tests.nodes.conftest import real_cast
from tests.tunnels.test_tunnels import Socket

__all__ = ["machine_of", "real_cast"]


class Answer:
    """The answer of the server so far; `reads` lets it send more than the beginning."""

    def __init__(self) -> None:
        self.status, self.headers, self.body = 0, list[tuple[bytes, bytes]](), b""
        self.reads = asyncio.Event()
        self.reads.set()

    async def take(self, message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.status, self.headers = message["status"], message["headers"]
            return
        self.body += message.get("body", b"")
        await self.reads.wait()

    def header(self, name: str) -> str:
        return next((value.decode() for key, value in self.headers if key == name.encode()), "")


class Stage:
    """A running notebook, its node's agent with what is behind it, and a person's session."""

    def __init__(self, job: Job, machine: Machine, user: User, session: str) -> None:
        self.job, self.user, self.session, self.cookie = job, user, session, ""
        self.credential = f"gpn_{machine.node.uid}.secret"
        self.agent = Agent(machine, self.credential)
        self.tasks: list[asyncio.Task[None]] = []
        self.from_jupyter = 0

    def ticket(self, uid: object = None) -> str:
        return entries.make_ticket(self.user, self.session, uid or self.job.uid)  # type: ignore[arg-type]

    async def enter(self, ticket: str) -> Answer:
        query = urlencode({"ticket": ticket}).encode()
        answer = await self.ask(admission.ENTRANCE, query=query)
        if answer.status == 303:
            self.cookie = answer.header("set-cookie").partition(";")[0]
        return answer

    async def ask(
        self, path: str, method: str = "GET", *, body: bytes = b"", query: bytes = b"", answer: Answer | None = None,
        **headers: str,
    ) -> Answer:  # fmt: skip
        """Send a request to the notebook's host, through the whole application."""
        host = hosts.origin_of(self.job.uid).partition("://")[2]
        sent = {"host": host, "cookie": self.cookie, **headers} | ({"content-length": str(len(body))} if body else {})
        scope: Any = {
            "type": "http", "method": method, "path": path, "raw_path": path.encode(), "query_string": query,
            "headers": [(name.replace("_", "-").encode(), value.encode()) for name, value in sent.items()],
            "client": ("127.0.0.1", 1), "scheme": "http", "http_version": "1.1",
        }  # fmt: skip
        pieces = [body[at : at + 65536] for at in range(0, len(body), 65536)] or [b""]
        told = asyncio.Event()

        async def receive() -> dict[str, Any]:
            if pieces:
                return {"type": "http.request", "body": pieces.pop(0), "more_body": bool(pieces)}
            await told.wait()
            return {"type": "http.disconnect"}

        found = answer or Answer()
        serving: Any = application(scope, receive, found.take)
        await asyncio.wait_for(serving, 30)
        return found

    async def dial(self) -> None:
        """Do as the agent does: connect each tunnel with the notebook."""
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        try:
            while True:
                # Its own `hear` ends the connection after some seconds without a frame.
                message = await self.agent.socket.output_queue.get()
                frame = wire.decode_from_server(message["text"])
                if isinstance(frame, wire.Tunnel):
                    assert frame.stream
                    self.tasks.append(asyncio.ensure_future(self._carry(frame, port)))
        finally:
            server.close()

    async def _carry(self, frame: wire.Tunnel, port: int) -> None:
        named = {"x_gpucloud_tunnel": frame.uid, "x_gpucloud_ticket": frame.ticket}
        node = await Socket("/ws/tunnel/", authorization=f"Bearer {self.credential}", **named).connect()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)

        async def carry_in() -> None:
            while (message := await node.it.output_queue.get())["type"] == "websocket.send":
                writer.write(message["bytes"])
                await writer.drain()
            writer.close()

        inward = asyncio.ensure_future(carry_in())
        with contextlib.suppress(AssertionError):
            while data := await reader.read(32 << 10):
                # As a websocket's buffer, that of the test is bounded.
                while node.it.input_queue.qsize() > 4:  # noqa: ASYNC110 - the queue has no event
                    await asyncio.sleep(0.005)
                self.from_jupyter += len(data)
                await node.send(data)
        inward.cancel()
        writer.close()
        with contextlib.suppress(AssertionError, TimeoutError):
            await node.leave()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError), contextlib.closing(writer):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                headers = dict(line.lower().split(": ", 1) for line in head.splitlines()[1:] if line)
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                if head.startswith("GET /large"):
                    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 8388608\r\n\r\n")
                    for _ in range(128):
                        writer.write(b"x" * 65536)
                        await writer.drain()
                    continue
                text = json.dumps({"line": head.splitlines()[0], "headers": headers, "size": len(body)}).encode()
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(text), text))
                await writer.drain()


@pytest.fixture
async def stage(real_cast: Cast, machine_of: Machine, settings: Any) -> AsyncIterator[Stage]:
    settings.NOTEBOOKS_URL = "http://notebooks.localhost:8000"

    def make() -> tuple[Job, User, str]:
        enrol_with(machine_of, "secret")
        user = User.objects.get(username="max")
        store = SessionStore()
        store[SESSION_KEY] = str(user.pk)
        store[BACKEND_SESSION_KEY] = "django.contrib.auth.backends.ModelBackend"
        store[HASH_SESSION_KEY] = user.get_session_auth_hash()
        store.create()
        assert store.session_key is not None
        return started(real_cast, machine_of, kind="notebook"), user, store.session_key

    job, user, session = await in_database(make)
    it = Stage(job, machine_of, user, session)
    await it.agent.greet(structs.replace(hello(machine_of.name), jobs=True, tunnels=True))
    it.tasks.append(asyncio.ensure_future(it.dial()))
    admission._remembered.clear()
    yield it
    for upstream in streams._upstreams.pop(asyncio.get_running_loop(), {}).values():
        assert upstream.reaper is not None
        upstream.reaper.cancel()
        await upstream.pool.aclose()
    await asyncio.sleep(0.1)
    for task in it.tasks:
        task.cancel()
    await asyncio.gather(*it.tasks, return_exceptions=True)
    await it.agent.hang_up()
    await hints.bus().close()


async def test_a_ticket_is_exchanged_once_and_the_cookie_opens_this_notebook_only(stage: Stage) -> None:
    ticket = stage.ticket()
    assert (await stage.ask("/api/status")).status == 403
    assert (await stage.enter(stage.ticket(uuid.uuid4()))).status == 403
    entered = await stage.enter(ticket)
    assert (entered.status, entered.header("location")) == (303, "/")
    assert {"HttpOnly", "SameSite=Lax", "Path=/"} <= set(entered.header("set-cookie").split("; "))
    assert (await stage.enter(ticket)).status == 403
    answer = await stage.ask("/api/status", query=b"a=1", accept="*/*")
    assert answer.status == 200
    got = json.loads(answer.body)
    assert got["line"] == "GET /api/status?a=1 HTTP/1.1"
    assert got["headers"]["authorization"].startswith("token ")
    assert "cookie" not in got["headers"]
    answer = await stage.ask("/upload", "PUT", body=b"y" * 1_000_000, origin=hosts.origin_of(stage.job.uid))
    assert json.loads(answer.body)["size"] == 1_000_000
    actions = await in_database(lambda: list(AuditEvent.objects.filter(action="job.open-notebook")))
    assert len(actions) == 1


async def test_an_entry_ends_with_the_session_the_role_and_the_account(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "REMEMBERED_SECONDS", 0.0)
    await stage.enter(stage.ticket())
    assert (await stage.ask("/")).status == 200

    async def changed(change: Any, undo: Any) -> int:
        await in_database(change)
        status = (await stage.ask("/")).status
        await in_database(undo)
        assert (await stage.ask("/")).status == 200
        return status

    members = Membership.objects.filter(user=stage.user)
    users = User.objects.filter(pk=stage.user.pk)
    assert await changed(lambda: members.update(role="viewer"), lambda: members.update(role="member")) == 403
    assert await changed(lambda: users.update(is_active=False), lambda: users.update(is_active=True)) == 403
    jobs = Job.objects.filter(pk=stage.job.pk)
    run = {"state": "running", "ended_at": None}
    assert await changed(lambda: jobs.update(state="queued"), lambda: jobs.update(**run)) == 409
    assert (
        await changed(lambda: jobs.update(kind="job", idle_minutes=None), lambda: jobs.update(kind="notebook")) == 404
    )
    # Signing out ends it for good; so does a new password.
    await in_database(lambda: UserSession.objects.filter(session_key=stage.session).delete())
    answer = await stage.ask("/")
    assert (answer.status, b"sign in there" in answer.body) == (403, True)


async def test_a_new_password_ends_it(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "REMEMBERED_SECONDS", 0.0)
    await stage.enter(stage.ticket())

    def change() -> None:
        user = User.objects.get(pk=stage.user.pk)
        user.set_password("another long password")
        user.save()

    await in_database(change)
    assert (await stage.ask("/")).status == 403


async def test_a_reader_that_stops_costs_a_window_and_not_the_answer(stage: Stage) -> None:
    await stage.enter(stage.ticket())
    answer = Answer()
    answer.reads.clear()
    asking = asyncio.ensure_future(stage.ask("/large", answer=answer))
    await asyncio.sleep(2)
    # What is on its way: the window, a few messages in buffers of the test and of sockets.
    assert stage.from_jupyter < ends.WINDOW_BYTES + (512 << 10)
    answer.reads.set()
    await asking
    assert len(answer.body) == 8 << 20


async def test_a_node_that_does_not_dial_is_said(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ends, "JOIN_SECONDS", 0.2)
    stage.tasks[0].cancel()
    await stage.enter(stage.ticket())
    answer = await stage.ask("/", sec_fetch_site="none", sec_fetch_mode="navigate")
    assert (answer.status, answer.header("refresh")) == (503, "2")
    assert "did not open the tunnel" in answer.body.decode()
