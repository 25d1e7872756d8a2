"""The agent starts the node's arbiter, restarts it when it dies, and ends it at its own end."""

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from agent import wire
from agent.host import processes
from agent.host.processes import Process
from tests.agent.control import Connection, Control
from tests.agent.stage import BUILD, Stage, eventually
from tests.agent.test_reconcile import put

# Does nothing, for ever: only its supervision is tested here.
IDLE = "#!/bin/sh\nexec sleep 1000\n"


def install(stage: Stage, program: str | None) -> str:
    """Install libvcuda with an arbiter beside it in a directory; return the library's path, for GPUCLOUD_LIBRARY."""
    library = stage.library_without_shim()
    library.symlink_to(BUILD / "libvcuda.so")
    (library.parent / "sim").symlink_to(BUILD / "sim")
    if program is not None:
        write(library.parent / "vcuda-arbiter", program)
    return str(library)


def write(path: Path, program: str) -> None:
    path.write_text(program)
    path.chmod(0o755)


def command_line(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


async def connected(stage: Stage) -> Connection:
    link = await stage.control.connection()
    stage.gpus = [gpu.uuid for gpu in (await link.expect(wire.Hello)).gpus]
    return link


async def arbiter(stage: Stage, *, but: int | None = None) -> Process:
    """Return the arbiter as soon as it runs and is another one."""

    def running() -> Process | None:
        pid = stage.status()["arbiter"]["pid"]
        # Until it has become its program it is still starting.
        named = pid not in (None, but) and b"sleep" in command_line(pid)
        return processes.find(pid) if named else None

    found: Process = await eventually(running)
    return found


async def test_the_real_one_allots_to_a_claim_that_has_the_gpu_to_itself(stage: Stage, control: Control) -> None:
    stage.start()
    link = await connected(stage)
    held = stage.assignment()
    await put(link, 1, held)
    await eventually(lambda: stage.status()["assignments"][0]["allotted_percent"] is not None)
    process = processes.find(stage.status()["arbiter"]["pid"])
    assert process is not None
    assert stage.agent is not None
    stage.agent.terminate()
    assert await stage.ended() == 0
    assert not processes.alive(process)


@pytest.fixture
async def link(stage: Stage) -> Connection:
    """Return the connection of an agent with an idle arbiter."""
    stage.start(GPUCLOUD_LIBRARY=install(stage, IDLE))
    return await connected(stage)


async def test_it_is_started_over_the_claims_directory_and_told_of(stage: Stage, link: Connection) -> None:
    hello = await link.expect(wire.Hello)
    assert hello.arbiter
    process = await arbiter(stage)
    status: dict[str, Any] = stage.status()["arbiter"]
    assert status == {"running": True, "pid": process.pid, "restarts": 0, "problem": None}


async def test_one_that_is_killed_is_started_again_and_the_server_hears_of_it(stage: Stage, link: Connection) -> None:
    first = await arbiter(stage)
    os.kill(first.pid, signal.SIGKILL)
    second = await arbiter(stage, but=first.pid)
    assert second != first
    assert stage.status()["arbiter"]["restarts"] == 1
    event = await link.expect(wire.Event, lambda event: event.code == "arbiter-died")
    assert "signal 9" in event.detail
    assert "its own limit" in event.detail


async def test_the_agents_end_is_its_end(stage: Stage, link: Connection) -> None:
    process = await arbiter(stage)
    assert stage.agent is not None
    stage.agent.terminate()
    assert await stage.ended() == 0
    assert not processes.alive(process)


async def test_a_killed_agent_takes_it_along_and_the_next_agent_starts_its_own(stage: Stage, link: Connection) -> None:
    first = await arbiter(stage)
    await stage.kill()
    await eventually(lambda: not processes.alive(first))
    stage.start(GPUCLOUD_LIBRARY=str(stage.state_dir.parent / "library" / "libvcuda.so"))
    await connected(stage)
    assert (await arbiter(stage)).pid != first.pid


async def test_two_never_run_at_the_same_time(stage: Stage, control: Control) -> None:
    stage.start()
    await connected(stage)
    first = await eventually(lambda: processes.find(stage.status()["arbiter"]["pid"] or 0))
    await eventually(lambda: b"parent_death.py" not in command_line(first.pid))
    # One that hangs does not end on a signal: it outlives its agent.
    os.kill(first.pid, signal.SIGSTOP)
    await stage.kill()
    stage.start()
    await connected(stage)
    await eventually(lambda: "waiting for it" in (stage.status()["arbiter"]["problem"] or ""))
    os.kill(first.pid, signal.SIGKILL)
    await eventually(lambda: stage.status()["arbiter"]["running"])
    await asyncio.sleep(1)
    assert stage.status()["arbiter"]["running"]


async def test_one_that_cannot_run_is_tried_again_and_does_no_harm(stage: Stage, control: Control) -> None:
    stage.start(GPUCLOUD_LIBRARY=install(stage, "#!/bin/sh\nexit 4\n"))
    link = await connected(stage)
    await eventually(lambda: stage.status()["arbiter"]["restarts"] >= 2)
    # While the next one starts there is no problem.
    await eventually(lambda: "code 4" in (stage.status()["arbiter"]["problem"] or ""))
    await put(link, 1, stage.assignment())
    # Once, not at every try, and though the agent was not connected yet.
    assert len([one for one in link.frames if isinstance(one, wire.Event)]) == 1


async def test_an_agent_works_where_none_is_built(stage: Stage, control: Control) -> None:
    stage.start(GPUCLOUD_LIBRARY=install(stage, None))
    link = await connected(stage)
    assert not (await link.expect(wire.Hello)).arbiter
    await put(link, 1, stage.assignment())
    status = stage.status()["arbiter"]
    assert not status["running"]
    assert "make -C libvcuda" in status["problem"]
    assert "no-arbiter" in stage.log_text()
