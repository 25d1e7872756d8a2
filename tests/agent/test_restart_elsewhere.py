"""Programs that save their state and end, so that they can start again on another node."""

import asyncio
import signal
import sys
from pathlib import Path

import pytest

from agent import wire
from tests.agent.control import Connection
from tests.agent.stage import GPULOAD, Stage, eventually
from tests.agent.suspensions import begin, used_mib, wish
from tests.agent.test_limits import load
from tests.agent.test_reconcile import put

# Saves what it counted when it gets SIGUSR1, and ends; `deaf` handles the signal and does not end.
TRAINER = """
import ctypes, pathlib, signal, sys, time
place = pathlib.Path(sys.argv[1])
steps = int(place.read_text()) if place.exists() else 0
asked = False
def save(*_):
    global asked
    asked = True
signal.signal(signal.SIGUSR1, save)
if "deaf" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
cuda = ctypes.CDLL("libcuda.so.1")
context, memory = ctypes.c_void_p(), ctypes.c_uint64()
assert cuda.cuInit(0) == 0 and cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0) == 0
assert cuda.cuMemAlloc_v2(ctypes.byref(memory), 64 << 20) == 0
pathlib.Path(sys.argv[2]).write_text(str(steps))
while not asked or "deaf" in sys.argv:
    steps += 1
    time.sleep(0.01)
# It needs the GPU to save.
more = ctypes.c_uint64()
assert cuda.cuMemAlloc_v2(ctypes.byref(more), 1 << 20) == 0
place.write_text(str(steps))
"""


@pytest.fixture
async def link(stage: Stage) -> Connection:
    return await begin(stage)


async def train(stage: Stage, held: wire.Assignment, place: Path, *words: str) -> Path:
    """Start a trainer under the claim; return the file that says from which step it began."""
    began = place.with_suffix(f".{len(stage.programs)}")
    stage.exec(held.claim_uid, sys.executable, "-c", TRAINER, str(place), str(began), *words)
    await eventually(began.exists)
    return began


def read_number(place: Path) -> int:
    return int(place.read_text())


async def end(link: Connection, held: wire.Assignment, seconds: int, *, generation: int = 2) -> wire.Assignment:
    return await wish(link, generation, held, suspended=True, generation=generation, end_seconds=seconds)


async def test_a_node_says_that_it_can_let_programs_end(stage: Stage) -> None:
    stage.start()
    assert (await (await stage.control.connection()).expect(wire.Hello)).restart is True


async def test_programs_save_their_state_with_the_gpu_and_end(stage: Stage, link: Connection, tmp_path: Path) -> None:
    held = stage.assignment()
    await put(link, 1, held)
    place = tmp_path / "saved"
    await train(stage, held, place)
    await asyncio.sleep(0.3)
    assert used_mib(stage) >= 64
    wanted = await end(link, held, 30)
    one = await link.state(held.uid, "suspended", 2)
    assert (one.saved_bytes, used_mib(stage)) == (0, 0)
    assert stage.programs[0].poll() == 0
    steps = read_number(place)
    assert steps > 0
    # No program can start where the claim may be no more.
    code, _, words = await stage.executed(held.claim_uid, "true", options=("--wait", "0"))
    assert (code, "is suspended" in words) == (125, True), words
    # Where it may go on, a program begins with what the other has saved.
    await wish(link, 3, wanted, suspended=False, generation=3, end_seconds=0)
    await link.state(held.uid, "in_force", 3)
    began = await train(stage, held, place)
    assert read_number(began) == steps


async def test_a_program_without_a_handler_gets_no_notice_but_sigterm(stage: Stage, link: Connection) -> None:
    held = stage.assignment()
    await put(link, 1, held)
    program = await load(stage, held, "--memory", "64MiB")
    await end(link, held, 600)
    await link.state(held.uid, "suspended", 2)
    # It handles SIGTERM and not SIGUSR1, of which it would have died.
    assert program.wait() != -signal.SIGUSR1


async def test_a_program_that_does_not_end_is_killed_after_its_time(
    stage: Stage, link: Connection, tmp_path: Path
) -> None:
    held = stage.assignment()
    await put(link, 1, held)
    await train(stage, held, tmp_path / "saved", "deaf")
    await end(link, held, 1)
    await link.state(held.uid, "suspended", 2)
    assert stage.programs[0].wait() == -signal.SIGKILL
    event = await link.expect(wire.Event, lambda frame: frame.code == "process-killed")
    assert "did not end" in event.detail


async def test_a_claim_without_programs_waits_for_some_from_another_node(stage: Stage) -> None:
    link = await begin(stage, GPUCLOUD_SIM_CUDA_VERSION="12000")
    held = stage.assignment(generation=1, suspended=True, end_seconds=60)
    await link.send(wire.Desired(frame=1, assignments=[held]))
    await link.state(held.uid, "suspended", 1)
    code, _, _ = await stage.executed(held.claim_uid, "true", options=("--wait", "0"))
    assert code == 125
    await wish(link, 2, held, suspended=False, generation=2, end_seconds=0)
    await link.state(held.uid, "in_force", 2)
    assert (await stage.executed(held.claim_uid, str(GPULOAD), "--seconds", "0.1"))[0] == 0


async def test_an_agent_killed_meanwhile_goes_on(stage: Stage, link: Connection, tmp_path: Path) -> None:
    held = stage.assignment()
    await put(link, 1, held)
    await train(stage, held, tmp_path / "saved", "deaf")
    await end(link, held, 3)
    await link.state(held.uid, "suspending", 2)
    await asyncio.sleep(0.3)
    await stage.kill()
    stage.start()
    again = await stage.control.connection()
    await again.expect(wire.Hello)
    await again.state(held.uid, "suspended", 2)
    assert stage.programs[0].wait() == -signal.SIGKILL
