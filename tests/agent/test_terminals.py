"""Terminals into runs: a real agent, a real keeper and a real terminal, as another user where the tests are root."""

import asyncio
import json
import os
import signal
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from websockets.asyncio.server import ServerConnection
from websockets.exceptions import ConnectionClosed

from agent import wire
from agent.host import processes
from tests.agent import forked
from tests.agent.control import Control
from tests.agent.jobs import ME, Jobs, settings
from tests.agent.stage import Stage, eventually

SECONDS = 30


@pytest.fixture
async def jobs(run_dir: Path, control: Control) -> AsyncIterator[Jobs]:
    """Return the runs of an agent that starts programs of jobs, with one claim."""
    root = run_dir / "machine"
    root.mkdir()
    stage = Stage(root, run_dir, control, agents=forked.server())
    stage.node_file.chmod(0o666)
    stage.start(**settings(stage))
    link = await control.connection()
    hello = await link.expect(wire.Hello)
    assert hello.tunnels is True
    stage.gpus = [gpu.uuid for gpu in hello.gpus]
    it = Jobs(stage, link)
    yield it
    await it.close()
    stage.close()


class Client:
    """A client's view of a terminal."""

    def __init__(self, socket: ServerConnection) -> None:
        self.socket = socket
        self.shown = b""
        self.news: dict[str, object] = {}

    async def type(self, text: str) -> None:
        await self.socket.send(text.encode())

    async def read(self) -> None:
        """Take one message."""
        message = await asyncio.wait_for(self.socket.recv(), SECONDS)
        if isinstance(message, bytes):
            self.shown += message
        else:
            self.news = json.loads(message)

    async def see(self, text: str) -> None:
        while text.encode() not in self.shown:
            await self.read()

    async def end(self) -> dict[str, object]:
        """Return the last news."""
        while not self.news:
            await self.read()
        return self.news

    async def refusal(self) -> str:
        with pytest.raises(ConnectionClosed) as caught:
            await asyncio.wait_for(self.socket.recv(), SECONDS)
        assert caught.value.rcvd is not None
        return caught.value.rcvd.reason


async def open_terminal(jobs: Jobs, run_uid: str, *command: str, **more: object) -> Client:
    tunnel = str(uuid.uuid4())
    await jobs.link.send(wire.Tunnel(uid=tunnel, run_uid=run_uid, ticket="the ticket"))
    socket = await asyncio.wait_for(jobs.stage.control.tunnels.get(), SECONDS)
    assert socket.request is not None
    headers = socket.request.headers
    assert (headers["X-Gpucloud-Tunnel"], headers["X-Gpucloud-Ticket"]) == (tunnel, "the ticket")
    assert headers["Authorization"] == jobs.link.authorization
    await socket.send(json.dumps({"command": command, "columns": 91, "rows": 33, **more}))
    return Client(socket)


async def running(jobs: Jobs, *command: str) -> str:
    uid = await jobs.want(*(command or ("sleep", "1000")))
    await jobs.reach(uid, "running")
    return uid


async def test_a_shell_has_a_terminal_under_the_claim_as_the_runs_user_in_its_home(jobs: Jobs) -> None:
    uid = await running(jobs)
    client = await open_terminal(jobs, uid)
    await client.type("tty; id -u; pwd; echo $GPUCLOUD_RUN $TERM; stty size\n")
    # When memory runs out, it ends before the run's keeper.
    await client.type("cat /proc/self/oom_score_adj; echo $((1 + 1))end\n")
    await client.see("2end\r\n")
    shown = client.shown.decode()
    home = str(jobs.directory(uid) / "home")
    for expected in (
        "/dev/pts/",
        f"\n{ME}\r\n",
        f"\n{home}\r\n",
        f"\n{uid} xterm-256color\r\n",
        "\n33 91\r\n",
        "500\r\n2end",
    ):
        assert expected in shown
    assert f"\n{jobs.claim.claim_uid}\r\n" not in shown
    await client.type("echo $GPUCLOUD_CLAIM $LD_PRELOAD done\n")
    await client.see("libvcuda")
    assert jobs.claim.claim_uid in client.shown.decode()
    await client.type("exit 7\n")
    assert await client.end() == {"exit": 7}


async def test_a_new_size_and_ctrl_c_reach_the_program(jobs: Jobs) -> None:
    uid = await running(jobs)
    script = "trap 'stty size' WINCH; trap 'echo caught; exit 9' INT; echo ready; while :; do sleep 0.1; done"
    client = await open_terminal(jobs, uid, "bash", "-c", script)
    await client.see("ready")
    await client.socket.send('{"columns": 120, "rows": 40}')
    await client.see("40 120")
    await client.type("\x03")
    await client.see("caught")
    assert await client.end() == {"exit": 9}


async def test_a_command_that_is_not_there_is_said(jobs: Jobs) -> None:
    client = await open_terminal(jobs, await running(jobs), "no-such-program")
    assert await client.end() == {"exit": 127}
    assert b"no-such-program: command not found" in client.shown


async def test_what_was_started_in_a_terminal_ends_with_it(jobs: Jobs) -> None:
    uid = await running(jobs)
    script = "trap '' HUP TERM; setsid sh -c 'trap \"\" HUP TERM; echo pid $$; while :; do sleep 1; done' & wait"
    client = await open_terminal(jobs, uid, "bash", "-c", script)
    await client.see("pid ")
    await client.see("\r\n")
    daemon = int(client.shown.split(b"pid ")[1].split()[0])
    assert processes.find(daemon) is not None
    await client.socket.close()
    await eventually(lambda: processes.find(daemon) is None)
    # The run goes on.
    assert jobs.keepers()
    await jobs.change(uid, stop=True)
    assert (await jobs.reach(uid, "ended")).reason == "stopped"


async def test_a_terminal_ends_with_the_run(jobs: Jobs) -> None:
    uid = await running(jobs)
    client = await open_terminal(jobs, uid, "sh", "-c", "trap '' TERM HUP; echo pid $$; while :; do sleep 1; done")
    await client.see("pid ")
    await client.see("\r\n")
    pid = int(client.shown.split(b"pid ")[1].split()[0])
    await jobs.change(uid, stop=True)
    assert await client.end() == {"ended": "The run has ended."}
    await jobs.reach(uid, "ended")
    assert processes.find(pid) is None


async def test_a_killed_terminal_process_leaves_nothing(jobs: Jobs) -> None:
    uid = await running(jobs)
    client = await open_terminal(jobs, uid, "sh", "-c", "echo pid $PPID $$; sleep 1000")
    await client.see("pid ")
    await client.see("\r\n")
    parent, pid = map(int, client.shown.split(b"pid ")[1].split()[:2])
    os.kill(parent, signal.SIGKILL)
    assert await client.end() == {"ended": "The run has ended."}
    await eventually(lambda: processes.find(pid) is None)


async def test_a_client_that_does_not_read_holds_the_program_up(jobs: Jobs) -> None:
    uid = await running(jobs)
    script = "i=0; while :; do head -c 65536 /dev/zero; i=$((i + 1)); echo $i > $HOME/count; done"
    client = await open_terminal(jobs, uid, "bash", "-c", script)
    await client.read()
    counter = jobs.directory(uid) / "home" / "count"
    await eventually(counter.exists)
    before = -1

    def stands() -> bool:
        nonlocal before
        now = int(counter.read_text() or 0)
        held, before = now == before and now > 0, now
        return held

    async with asyncio.timeout(SECONDS):
        while not stands():  # noqa: ASYNC110 - a file
            await asyncio.sleep(0.5)
    # What the sockets of the machine hold, not the agent: megabytes, where the program would write gigabytes.
    assert before < 1000
    # It goes on as soon as the client reads.
    while int(counter.read_text() or 0) <= before:
        await client.read()
    await client.socket.close()


@pytest.mark.parametrize(
    ("first", "words"),
    [
        ("{", "first message"),
        ('{"columns": 0}', "columns and rows"),
        ('{"command": ["a\\u0000b"]}', "NUL"),
        ('{"command": [""]}', "names a program"),
    ],
)
async def test_a_malformed_first_message_is_refused_in_words(jobs: Jobs, first: str, words: str) -> None:
    await jobs.link.send(wire.Tunnel(uid=str(uuid.uuid4()), run_uid=await running(jobs), ticket="x"))
    socket = await asyncio.wait_for(jobs.stage.control.tunnels.get(), SECONDS)
    await socket.send(first)
    assert words in await Client(socket).refusal()


async def test_there_is_no_terminal_without_a_run(jobs: Jobs) -> None:
    client = await open_terminal(jobs, str(uuid.uuid4()))
    assert "does not run here" in await client.refusal()
    ended = await jobs.want("true")
    await jobs.reach(ended, "ended")
    client = await open_terminal(jobs, ended)
    assert "does not run here" in await client.refusal()
