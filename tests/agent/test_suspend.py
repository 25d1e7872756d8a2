"""Claims whose programs are suspended and resumed, on a simulated driver: states, memory, refusals."""

import asyncio
import contextlib
import json
import os
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from msgspec import UNSET

from agent import wire
from tests.agent.control import Connection, Control
from tests.agent.stage import BUILD, GIB, Stage, eventually
from tests.agent.test_limits import load
from tests.agent.test_reconcile import changed, put

MIB = 1 << 20
# Holds memory and launches kernels; after an error it waits for SIGTERM.
STEADY = (str(BUILD / "tests" / "suite"), "--role", "suspend_work", "64", "1000000")
FAST: dict[str, Any] = {"GPUCLOUD_SIM_CHECKPOINT_RATE": "40000", "GPUCLOUD_SUSPEND_MEMORY_MIB": "65536"}


async def begin(stage: Stage, **more: Any) -> Connection:
    """Start an agent whose driver moves memory fast."""
    stage.start(**(FAST | more))
    link = await stage.control.connection()
    hello = await link.expect(wire.Hello)
    stage.gpus = [gpu.uuid for gpu in hello.gpus]
    return link


@pytest.fixture
async def slow(stage: Stage) -> Connection:
    """Return the connection of an agent whose driver takes a second or so for each GiB."""
    return await begin(stage, GPUCLOUD_SIM_CHECKPOINT_RATE="1000")


@pytest.fixture
async def fast(stage: Stage) -> Connection:
    return await begin(stage)


async def wish(
    link: Connection, frame: int, held: wire.Assignment, *, suspended: bool, generation: int, **more: Any
) -> wire.Assignment:
    """Let the server want the claim suspended, or not."""
    wanted = changed(held, suspended=suspended, generation=generation, **more)
    await link.send(wire.Desired(frame=frame, assignments=[wanted]))
    return wanted


async def refusal(link: Connection, uid: str, generation: int) -> wire.Observation:
    """Return the observation of a wish that was refused."""

    def holds(one: wire.Observation) -> bool:
        return one.generation == generation and isinstance(one.suspend_refused, str)

    def find(frame: wire.Observed) -> wire.Observation | None:
        return next((one for one in frame.assignments if one.uid == uid and holds(one)), None)

    frame = await link.expect(wire.Observed, lambda frame: find(frame) is not None, seconds=45)
    found = find(frame)
    assert found is not None
    return found


def used_mib(stage: Stage, gpu: int = 0) -> int:
    """Return the memory in use on a GPU."""
    shown = subprocess.run([BUILD / "simnode", "show", stage.node_file], capture_output=True, text=True, check=True)
    found = re.search(rf"^{gpu} GPU-.* (\d+)/\d+ MiB", shown.stdout, re.MULTILINE)
    assert found is not None
    return int(found[1])


async def goes_on(stage: Stage, held: wire.Assignment) -> None:
    """Wait until the claim's programs have had the GPU for another tenth of a second."""
    before = stage.totals(held).gpu_time_ns
    await eventually(lambda: stage.totals(held).gpu_time_ns > before + 100_000_000)


def find_helpers(stage: Stage) -> list[int]:
    """Return the pids of the agent's living helper processes."""
    assert stage.agent is not None
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            words = (entry / "cmdline").read_bytes()
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            if b"suspend/helper.py" in words and parent == stage.agent.pid:
                found.append(int(entry.name))
    return found


async def test_a_claims_memory_leaves_the_gpu_and_comes_back(stage: Stage, slow: Connection) -> None:
    held = stage.assignment()
    await put(slow, 1, held)
    program = await load(stage, held, "--memory", "1GiB")
    await eventually(lambda: used_mib(stage) > 1024)
    before = used_mib(stage)
    wanted = await wish(slow, 2, held, suspended=True, generation=2)
    await slow.state(held.uid, "suspending", 2)
    saved = await slow.state(held.uid, "suspended", 2)
    assert used_mib(stage) == 0
    assert (saved.memory_bytes, saved.saved_bytes) == (0, before * MIB)
    assert (slot := stage.slot(held)) is not None
    assert slot.suspended
    slow.forget()
    await wish(slow, 3, wanted, suspended=False, generation=3)
    coming = await slow.state(held.uid, "resuming", 3)
    assert coming.memory_bytes >= before * MIB
    back = await slow.state(held.uid, "in_force", 3)
    assert (back.suspend_refused, back.saved_bytes) == (UNSET, UNSET)
    assert used_mib(stage) == before
    assert program.poll() is None
    await goes_on(stage, held)
    assert (slot := stage.slot(held)) is not None
    assert not slot.suspended


async def test_a_machine_says_what_it_can_suspend(stage: Stage) -> None:
    stage.start(**FAST)
    hello = await (await stage.control.connection()).expect(wire.Hello)
    assert (hello.suspend, hello.host_memory_bytes) == (True, 64 * GIB)


async def test_an_older_driver_cannot_suspend(stage: Stage) -> None:
    stage.start(GPUCLOUD_SIM_CUDA_VERSION="12040")
    link = await stage.control.connection()
    hello = await link.expect(wire.Hello)
    stage.gpus = [gpu.uuid for gpu in hello.gpus]
    assert (hello.suspend, hello.host_memory_bytes) == (UNSET, UNSET)
    held = stage.assignment()
    await put(link, 1, held)
    await wish(link, 2, held, suspended=True, generation=2)
    one = await refusal(link, held.uid, 2)
    assert one.state == "in_force"
    assert "needs driver 570" in str(one.suspend_refused)


async def test_a_claim_without_programs_is_suspended_at_once(stage: Stage, fast: Connection) -> None:
    held = stage.assignment()
    await put(fast, 1, held)
    wanted = await wish(fast, 2, held, suspended=True, generation=2)
    assert (await fast.state(held.uid, "suspended", 2)).saved_bytes == 0
    await wish(fast, 3, wanted, suspended=False, generation=3)
    await fast.state(held.uid, "in_force", 3)


async def test_nothing_starts_under_a_suspended_claim(stage: Stage, fast: Connection) -> None:
    held = stage.assignment()
    await put(fast, 1, held)
    files = [stage.claim_dir(held) / "env", *(stage.run_dir / "cdi").glob(f"*{held.claim_uid}.json")]
    await eventually(files[0].exists)
    wanted = await wish(fast, 2, held, suspended=True, generation=2)
    await fast.state(held.uid, "suspended", 2)
    code, _, error = await stage.executed(held.claim_uid, "true")
    assert code != 0
    assert "is suspended" in error
    await eventually(lambda: not any(file.exists() for file in files))
    await wish(fast, 3, wanted, suspended=False, generation=3)
    await fast.state(held.uid, "in_force", 3)
    assert (await stage.executed(held.claim_uid, "true"))[0] == 0
    await eventually(files[0].exists)


async def test_three_programs_of_a_claim_are_suspended_together(stage: Stage, fast: Connection) -> None:
    held = stage.assignment()
    await put(fast, 1, held)
    programs = [await load(stage, held, "--memory", "512MiB") for _ in range(3)]
    await eventually(lambda: used_mib(stage) > 3 * 512)
    before = used_mib(stage)
    wanted = await wish(fast, 2, held, suspended=True, generation=2)
    one = await fast.state(held.uid, "suspended", 2)
    assert (used_mib(stage), one.saved_bytes) == (0, before * MIB)
    await wish(fast, 3, wanted, suspended=False, generation=3)
    await fast.state(held.uid, "in_force", 3)
    assert used_mib(stage) == before
    assert [program.poll() for program in programs] == [None] * 3
    await goes_on(stage, held)


async def test_a_claim_on_two_gpus_is_suspended_on_both(stage: Stage, fast: Connection) -> None:
    first, second = stage.assignment(), stage.assignment(gpu=1)
    second = changed(second, claim_uid=first.claim_uid)
    await put(fast, 1, first, second)
    await load(stage, first, "--memory", "512MiB")
    on_second = stage.exec(first.claim_uid, str(BUILD / "gpuload"), "--device", "1", "--memory", "256MiB")
    await eventually(lambda: used_mib(stage) > 512 and used_mib(stage, 1) > 256)
    before = used_mib(stage), used_mib(stage, 1)
    both = [changed(one, suspended=True, generation=2) for one in (first, second)]
    await fast.send(wire.Desired(frame=2, assignments=both))
    assert (await fast.state(first.uid, "suspended", 2)).saved_bytes == before[0] * MIB
    assert (await fast.state(second.uid, "suspended", 2)).saved_bytes == before[1] * MIB
    assert (used_mib(stage), used_mib(stage, 1)) == (0, 0)
    await fast.send(wire.Desired(frame=3, assignments=[changed(one, suspended=False, generation=3) for one in both]))
    await fast.state(first.uid, "in_force", 3)
    await fast.state(second.uid, "in_force", 3)
    assert on_second.poll() is None


async def test_a_limit_below_what_was_saved_keeps_a_claim_suspended(stage: Stage, fast: Connection) -> None:
    held = stage.assignment()
    await put(fast, 1, held)
    program = await load(stage, held, "--memory", "2GiB")
    await eventually(lambda: used_mib(stage) > 2048)
    before = used_mib(stage)
    wanted = await wish(fast, 2, held, suspended=True, generation=2)
    await fast.state(held.uid, "suspended", 2)
    small = await wish(fast, 3, wanted, suspended=True, generation=3, memory_bytes=GIB)
    await fast.state(held.uid, "suspended", 3)
    assert (slot := stage.slot(held)) is not None
    assert slot.memory_bytes == GIB
    fast.forget()
    small = await wish(fast, 4, small, suspended=False, generation=4)
    one = await refusal(fast, held.uid, 4)
    assert one.state == "suspended"
    assert f"raise memory_mib to {before}" in str(one.suspend_refused)
    assert used_mib(stage) == 0
    await wish(fast, 5, small, suspended=False, generation=5, memory_bytes=4 * GIB)
    assert (await fast.state(held.uid, "in_force", 5)).suspend_refused is UNSET
    assert (used_mib(stage), program.poll()) == (before, None)


async def test_a_claim_waits_in_host_memory_while_its_gpu_is_full(stage: Stage, fast: Connection) -> None:
    held, other = stage.assignment(), stage.assignment(memory_bytes=24 * GIB)
    await put(fast, 1, held, other)
    program = await load(stage, held, "--memory", "2GiB")
    wanted = changed(held, suspended=True, generation=2)
    await fast.send(wire.Desired(frame=2, assignments=[wanted, other]))
    await fast.state(held.uid, "suspended", 2)
    filler = await load(stage, other, "--memory", "23GiB", "--kernel-us", "0")
    await eventually(lambda: used_mib(stage) > 23000)
    fast.forget()
    wanted = changed(wanted, suspended=False, generation=3)
    await fast.send(wire.Desired(frame=3, assignments=[wanted, other]))
    one = await refusal(fast, held.uid, 3)
    assert one.state == "suspended"
    assert "not so much free memory" in str(one.suspend_refused)
    filler.terminate()
    await asyncio.to_thread(filler.wait, 10)
    await fast.send(wire.Desired(frame=4, assignments=[changed(wanted, generation=4), other]))
    await fast.state(held.uid, "in_force", 4)
    assert program.poll() is None
    await goes_on(stage, held)


async def test_host_memory_bounds_what_is_suspended(stage: Stage) -> None:
    link = await begin(stage, GPUCLOUD_SUSPEND_MEMORY_MIB="1536")
    first, second = stage.assignment(), stage.assignment(gpu=1)
    await put(link, 1, first, second)
    for one in (first, second):
        await load(stage, one, "--memory", "1GiB")
    await eventually(lambda: used_mib(stage) > 1024 and stage.totals(second).memory_bytes > GIB)
    first = changed(first, suspended=True, generation=2)
    await link.send(wire.Desired(frame=2, assignments=[first, second]))
    await link.state(first.uid, "suspended", 2)
    second = changed(second, suspended=True, generation=2)
    await link.send(wire.Desired(frame=3, assignments=[first, second]))
    refused = await refusal(link, second.uid, 2)
    assert refused.state == "in_force"
    assert "of 1536 MiB of host memory" in str(refused.suspend_refused)
    first = changed(first, suspended=False, generation=3)
    await link.send(wire.Desired(frame=4, assignments=[first, changed(second, generation=3)]))
    await link.state(first.uid, "in_force", 3)


async def test_a_stopped_program_is_not_suspended(stage: Stage, fast: Connection) -> None:
    held = stage.assignment()
    await put(fast, 1, held)
    program = await load(stage, held)
    program.send_signal(signal.SIGSTOP)
    wanted = await wish(fast, 2, held, suspended=True, generation=2)
    one = await refusal(fast, held.uid, 2)
    assert one.state == "in_force"
    assert f"[{program.pid}] are stopped" in str(one.suspend_refused)
    program.send_signal(signal.SIGCONT)
    await wish(fast, 3, wanted, suspended=True, generation=3)
    await fast.state(held.uid, "suspended", 3)


async def test_managed_memory_is_refused_and_the_program_goes_on(stage: Stage, fast: Connection) -> None:
    held = stage.assignment()
    await put(fast, 1, held)
    program = stage.exec(held.claim_uid, *STEADY, "managed")
    await eventually(lambda: stage.totals(held).processes == 1)
    await wish(fast, 2, held, suspended=True, generation=2)
    one = await refusal(fast, held.uid, 2)
    assert one.state == "in_force"
    assert "managed memory" in str(one.suspend_refused)
    await goes_on(stage, held)
    assert program.poll() is None


@pytest.mark.parametrize("when", ["suspending", "suspended", "resuming"])
async def test_a_release_ends_the_programs_at_every_step(stage: Stage, slow: Connection, when: str) -> None:
    held = stage.assignment()
    await put(slow, 1, held)
    program = await load(stage, held, "--memory", "2GiB")
    await eventually(lambda: used_mib(stage) > 2048)
    wanted = await wish(slow, 2, held, suspended=True, generation=2)
    if when != "suspending":
        await slow.state(held.uid, "suspended", 2)
        if when == "resuming":
            await wish(slow, 3, wanted, suspended=False, generation=3)
    await slow.state(held.uid, when)
    await wish(slow, 9, wanted, suspended=False, generation=9, present=False)
    await slow.state(held.uid, "released", 9)
    await asyncio.to_thread(program.wait, 10)
    await eventually(lambda: used_mib(stage) == 0)
    await eventually(lambda: not find_helpers(stage))
    assert json.loads((stage.run_dir / "suspensions.json").read_text()) == {}


@pytest.mark.parametrize("when", ["suspending", "suspended", "resuming"])
async def test_programs_may_be_killed_at_every_step(stage: Stage, slow: Connection, when: str) -> None:
    held = stage.assignment()
    await put(slow, 1, held)
    programs = [await load(stage, held, "--memory", "1GiB") for _ in range(2)]
    await eventually(lambda: used_mib(stage) > 2048)
    wanted = await wish(slow, 2, held, suspended=True, generation=2)
    if when != "suspending":
        await slow.state(held.uid, "suspended", 2)
        if when == "resuming":
            wanted = await wish(slow, 3, wanted, suspended=False, generation=3)
    await slow.state(held.uid, when)
    programs[0].kill()
    await asyncio.to_thread(programs[0].wait, 10)
    if when == "suspending":
        await slow.state(held.uid, "suspended", 2)
    if when != "resuming":
        assert used_mib(stage) == 0
        wanted = await wish(slow, 3, wanted, suspended=False, generation=3)
    await slow.state(held.uid, "in_force", 3)
    assert programs[1].poll() is None
    await goes_on(stage, held)
    await eventually(lambda: 1024 < used_mib(stage) < 2048)


@pytest.mark.parametrize("when", ["suspending", "resuming"])
async def test_a_helper_may_be_killed_at_every_step(stage: Stage, slow: Connection, when: str) -> None:
    held = stage.assignment()
    await put(slow, 1, held)
    programs = [await load(stage, held, "--memory", "1GiB") for _ in range(2)]
    await eventually(lambda: used_mib(stage) > 2048)
    wanted = await wish(slow, 2, held, suspended=True, generation=2)
    if when == "resuming":
        await slow.state(held.uid, "suspended", 2)
        await wish(slow, 3, wanted, suspended=False, generation=3)
    await slow.state(held.uid, when)
    await asyncio.sleep(0.7)
    for pid in await eventually(lambda: find_helpers(stage)):
        os.kill(pid, signal.SIGKILL)
    if when == "suspending":
        await slow.state(held.uid, "suspended", 2)
        assert used_mib(stage) == 0
        await wish(slow, 3, wanted, suspended=False, generation=3)
    await slow.state(held.uid, "in_force", 3)
    assert [program.poll() for program in programs] == [None, None]
    await goes_on(stage, held)


async def test_an_agent_that_is_killed_at_every_step_goes_on(stage: Stage, slow: Connection, control: Control) -> None:
    held = stage.assignment()
    await put(slow, 1, held)
    program = await load(stage, held, "--memory", "1GiB")
    await eventually(lambda: used_mib(stage) > 1024)
    before = used_mib(stage)
    wanted, link = await wish(slow, 2, held, suspended=True, generation=2), slow
    for when, then, generation in (("suspending", "suspended", 2), ("suspended", "suspended", 2)):
        await link.state(held.uid, when, generation)
        await stage.kill()
        stage.start(**FAST)
        link = await control.connection()
        await link.state(held.uid, then, generation)
        assert used_mib(stage) == 0
    await stage.kill()
    stage.start(**(FAST | {"GPUCLOUD_SIM_CHECKPOINT_RATE": "500"}))
    link = await control.connection()
    one = await link.state(held.uid, "suspended", 2)
    assert one.saved_bytes == before * MIB
    await wish(link, 3, wanted, suspended=False, generation=3)
    await link.state(held.uid, "resuming", 3)
    await stage.kill()
    stage.start(**FAST)
    link = await control.connection()
    await link.state(held.uid, "in_force", 3)
    assert used_mib(stage) == before
    assert program.poll() is None
    await goes_on(stage, held)


async def test_an_agent_whose_journal_was_lost_brings_programs_back(
    stage: Stage, fast: Connection, control: Control
) -> None:
    held = stage.assignment()
    await put(fast, 1, held)
    program = await load(stage, held, "--memory", "1GiB")
    wanted = await wish(fast, 2, held, suspended=True, generation=2)
    await fast.state(held.uid, "suspended", 2)
    await stage.kill()
    (stage.run_dir / "suspensions.json").write_text("not a journal")
    (stage.state_dir / "desired.json").unlink()
    stage.start(**FAST)
    link = await control.connection()
    await wish(link, 3, wanted, suspended=False, generation=3)
    await link.state(held.uid, "in_force", 3)
    assert program.poll() is None
    await goes_on(stage, held)
