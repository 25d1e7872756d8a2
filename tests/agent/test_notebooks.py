"""The agent's connections to notebooks: only to a socket that the run's user has made; and how it measures use."""

import asyncio
import contextlib
import json
import os
import socket
import time
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec import UNSET

from agent import statefile, wire
from agent.jobs import files, notebooks
from agent.jobs.notebooks import NOT_READY, SOCKET, NoNotebook, NotebookWatch, connect
from agent.jobs.run_directory import Order, RunDirectory

OTHER = 54321


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    """Return a run's directory, so deep that its sockets have no path of their own."""
    root = tmp_path.joinpath(*["a-long-name-of-a-directory"] * 5)
    found = RunDirectory(root)
    found.home.mkdir(parents=True)
    write_order(found, None)
    return found


def write_order(directory: RunDirectory, uid: int | None) -> None:
    order = Order(
        command=["true"], seconds=0, output_bytes=1, uid=uid, home=str(directory.home), tmp="", group="g",
        memory_bytes=1, disk_bytes=1, cpu_weight=1, processes=1, files=1, stop_seconds=1, linger_seconds=1, boot="b",
    )  # fmt: skip
    statefile.write(directory.root / files.ORDER, order)


@contextlib.contextmanager
def listening(place: Path, *, backlog: int = 5) -> Iterator[socket.socket]:
    """Yield a socket that listens there, whatever the length of the path."""
    within = os.open(place.parent, os.O_PATH)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"/proc/self/fd/{within}/{place.name}")
        listener.listen(backlog)
        yield listener
    os.close(within)
    place.unlink()


def refused(directory: RunDirectory) -> str:
    with pytest.raises(NoNotebook) as error:
        connect(directory).close()
    return str(error.value)


def test_it_connects_to_the_socket_of_the_runs_user(directory: RunDirectory) -> None:
    assert refused(directory) == NOT_READY
    with listening(directory.home / SOCKET) as listener, connect(directory) as connection:
        connection.setblocking(True)
        there, _ = listener.accept()
        there.sendall(b"hello")
        there.close()
        assert connection.recv(10) == b"hello"


def test_nothing_that_the_name_leads_to_elsewhere_is_connected(directory: RunDirectory, tmp_path: Path) -> None:
    place = directory.home / SOCKET
    with listening(tmp_path / "s") as of_agent:
        place.symlink_to(tmp_path / "s")
        assert "not the run's own" in refused(directory)
        place.unlink()
        place.write_text("no socket")
        assert "not the run's own" in refused(directory)
        place.unlink()
        of_agent.settimeout(0)
        with pytest.raises(BlockingIOError):
            of_agent.accept()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes sockets of others")
def test_a_socket_of_another_user_is_not_connected_also_by_a_hard_link(directory: RunDirectory, tmp_path: Path) -> None:
    write_order(directory, OTHER)
    place = directory.home / SOCKET
    # It is root's: a program with rights that the tenant's user does not have.
    with listening(tmp_path / "s") as of_root:
        os.link(tmp_path / "s", place)
        assert "not the run's own" in refused(directory)
        # Even if its file is made the user's, its process is not.
        os.chown(place, OTHER, OTHER)
        assert "not the run's own" in refused(directory)
        of_root.close()
        place.unlink()


def test_a_notebook_that_accepts_nothing_holds_nobody_up(directory: RunDirectory) -> None:
    with listening(directory.home / SOCKET, backlog=0), contextlib.ExitStack() as stack:
        begun = time.monotonic()
        stack.enter_context(connect(directory))
        assert refused(directory) == NOT_READY
        assert time.monotonic() - begun < 1


class Jupyter:
    """A stand-in for the API of a notebook."""

    def __init__(self) -> None:
        self.connections, self.kernels, self.used_at = 0, list[str](), time.time()
        self.asked: list[str] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
        except asyncio.IncompleteReadError:
            return  # ended before it asked
        self.asked.append(head)
        last = datetime.fromtimestamp(self.used_at, UTC).isoformat().replace("+00:00", "Z")
        status = {"connections": self.connections, "kernels": len(self.kernels), "last_activity": last}
        kernels = [{"execution_state": state} for state in self.kernels]
        body: Any = status if "/api/status" in head else kernels
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n" + json.dumps(body).encode())
        await writer.drain()
        writer.close()


@pytest.fixture
async def jupyter(directory: RunDirectory) -> AsyncIterator[Jupyter]:
    found = Jupyter()
    with listening(directory.home / SOCKET) as listener:
        server = await asyncio.start_unix_server(found.serve, sock=listener)
        yield found
        server.close()


class Watching:
    """A watch of one notebook, which looks all the time, by a clock of the test."""

    def __init__(self, directory: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = float(int(time.time()))
        monkeypatch.setattr(notebooks, "LOOK_SECONDS", 0.05)
        monkeypatch.setattr(notebooks, "time", SimpleNamespace(time=lambda: self.now))
        environment = {"JUPYTER_TOKEN": "s3cret"}
        self.run = wire.JobRun(uid="a", claim_uid="b", command=["sh"], environment=environment, notebook=True)
        self.watch = NotebookWatch(lambda _: directory)
        assert self.watch.follow(self.run) is UNSET
        self.looking = asyncio.ensure_future(self.watch.run())

    async def seen(self, *, after: float = 0.0) -> Any:
        """Return what is known so many seconds later."""
        self.now += after
        await asyncio.sleep(0.3)
        return self.watch.follow(self.run)


@pytest.fixture
async def watching(directory: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Watching]:
    found = Watching(directory, monkeypatch)
    yield found
    found.looking.cancel()
    await asyncio.gather(found.looking, return_exceptions=True)


async def test_use_is_a_busy_kernel_a_connection_or_the_last_activity(jupyter: Jupyter, watching: Watching) -> None:
    # An hour without use, but this agent has not seen it: it counts from the first look.
    jupyter.used_at, jupyter.kernels = watching.now - 3600, ["idle"]
    assert await watching.seen() == 0
    assert await watching.seen(after=100) == 100
    jupyter.kernels = ["idle", "busy"]
    assert await watching.seen() == 0
    jupyter.kernels, jupyter.connections = ["idle"], 1
    assert await watching.seen(after=100) == 0
    jupyter.connections = 0
    assert await watching.seen(after=50) == 50
    jupyter.used_at = watching.now - 20
    assert await watching.seen() == 20
    assert all("Authorization: token s3cret" in head for head in jupyter.asked)


async def test_a_notebook_that_does_not_answer_is_not_known_to_be_unused(
    directory: RunDirectory, jupyter: Jupyter, watching: Watching
) -> None:
    jupyter.used_at = watching.now - 3600
    assert await watching.seen() == 0
    directory.home.rename(directory.root / "away")
    assert await watching.seen(after=1000) is UNSET
    (directory.root / "away").rename(directory.home)
    # It begins anew.
    assert await watching.seen() == 0
    watching.watch.forget("a")
    assert await watching.seen() is UNSET


async def test_no_answer_of_a_notebook_ends_the_looking(directory: RunDirectory, watching: Watching) -> None:
    body = b"[" * 100_000
    head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n".encode()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(head + body)
        await writer.drain()
        writer.close()

    with listening(directory.home / SOCKET) as listener:
        async with await asyncio.start_unix_server(answer, sock=listener):
            assert await watching.seen() is UNSET
            assert not watching.looking.done()
