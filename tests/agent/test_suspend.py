"""Claims whose programs are suspended and resumed, on a simulated driver: states, memory, refusals."""

import asyncio
import signal
from pathlib import Path

import pytest
from msgspec import UNSET

from agent import wire
from tests.agent.control import Connection
from tests.agent.stage import BUILD, GIB, Stage, eventually
from tests.agent.suspensions import FAST, MIB, begin, goes_on, refusal, used_mib, wish
from tests.agent.test_groups import needs_groups
from tests.agent.test_limits import load
from tests.agent.test_reconcile import changed, put


@pytest.fixture
async def slow(stage: Stage) -> Connection:
    """Return the connection of an agent whose driver takes a second or so for each GiB."""
    return await begin(stage, GPUCLOUD_SIM_CHECKPOINT_RATE="1000")


@pytest.fixture
async def fast(stage: Stage) -> Connection:
    return await begin(stage)


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
    # The program's own account stands.
    usage = await slow.expect(wire.Usage, lambda frame: frame.assignments[0].processes > 0)
    assert usage.assignments[0].memory_bytes == 0
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
    assert "must be free on" in str(one.suspend_refused)
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
    stat = Path(f"/proc/{program.pid}/stat")
    program.send_signal(signal.SIGSTOP)
    # On a busy machine it runs on for a moment.
    await eventually(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T")
    wanted = await wish(fast, 2, held, suspended=True, generation=2)
    one = await refusal(fast, held.uid, 2)
    assert one.state == "in_force"
    assert f"[{program.pid}] are stopped" in str(one.suspend_refused)
    program.send_signal(signal.SIGCONT)
    await eventually(lambda: stat.read_text().rpartition(")")[2].split()[0] != "T")
    await wish(fast, 3, wanted, suspended=True, generation=3)
    await fast.state(held.uid, "suspended", 3)


@needs_groups
async def test_what_does_not_use_the_gpu_stands_still_too(stage: Stage, fast: Connection) -> None:
    held = stage.assignment()
    await put(fast, 1, held)
    counter = stage.state_dir / "counter"
    # It ends with the program on the GPU, which takes the shell's place.
    counts = f"while kill -0 $$; do echo >> {counter}; sleep 0.02; done 2>/dev/null"
    stage.exec(held.claim_uid, "sh", "-c", f"{counts} & exec {BUILD / 'gpuload'} --memory 256MiB >/dev/null")
    await eventually(lambda: counter.exists() and used_mib(stage) > 256)
    wanted = await wish(fast, 2, held, suspended=True, generation=2)
    await fast.state(held.uid, "suspended", 2)
    lines = counter.stat().st_size
    await asyncio.sleep(0.5)
    assert counter.stat().st_size <= lines + 1
    await wish(fast, 3, wanted, suspended=False, generation=3)
    await fast.state(held.uid, "in_force", 3)
    await eventually(lambda: counter.stat().st_size > lines + 5)
