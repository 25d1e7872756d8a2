"""Claims that resume on other GPUs of their machine, on a simulated driver: memory, limits, files, refusals."""

import asyncio
import json
import os
import signal
from pathlib import Path
from uuid import UUID

import pytest
from msgspec import UNSET

from agent import wire
from agent.host.gpus import Inventory
from agent.host.processes import Process
from agent.suspend import moving
from tests.agent.control import Connection
from tests.agent.stage import GIB, GPULOAD, Stage, eventually
from tests.agent.suspensions import FAST, MIB, begin, find_helpers, goes_on, refusal, used_mib, wish
from tests.agent.test_limits import load
from tests.agent.test_reconcile import changed, put


@pytest.fixture
async def fast(stage: Stage) -> Connection:
    return await begin(stage)


async def suspended(link: Connection, held: wire.Assignment) -> wire.Assignment:
    """Have the claim suspended at generation 2."""
    wanted = await wish(link, 2, held, suspended=True, generation=2)
    await link.state(held.uid, "suspended", 2)
    link.forget()
    return wanted


async def resume_on(
    link: Connection, stage: Stage, wanted: wire.Assignment, gpu: int, generation: int = 3
) -> wire.Assignment:
    """Let the server want the claim back, on this GPU."""
    return await wish(link, generation, wanted, suspended=False, generation=generation, gpu_uuid=stage.gpus[gpu])


async def test_a_machine_says_that_it_can_move(stage: Stage) -> None:
    stage.start(**FAST)
    assert (await (await stage.control.connection()).expect(wire.Hello)).move is True


async def test_a_driver_before_580_suspends_and_does_not_move(stage: Stage) -> None:
    link = await begin(stage, GPUCLOUD_SIM_CUDA_VERSION="12080")
    held = stage.assignment()
    await put(link, 1, held)
    wanted = await suspended(link, held)
    await resume_on(link, stage, wanted, 1)
    assert "must be 580" in str((await refusal(link, held.uid, 3)).suspend_refused)


async def test_programs_move_with_their_memory_limits_and_files(stage: Stage, fast: Connection) -> None:
    held = stage.assignment()
    await put(fast, 1, held)
    programs = [await load(stage, held, "--memory", size) for size in ("1GiB", "512MiB")]
    await eventually(lambda: used_mib(stage) > 1536)
    before, file = used_mib(stage), stage.claim_dir(held) / "env"
    wanted = await suspended(fast, held)
    moved = await resume_on(fast, stage, wanted, 1)
    one = await fast.state(held.uid, "in_force", 3)
    assert one.suspend_refused is UNSET
    assert (used_mib(stage, 0), used_mib(stage, 1)) == (0, before)
    assert [program.poll() for program in programs] == [None, None]
    # The slot is the same, of the other GPU: the programs' account goes on in it.
    assert (slot := stage.slot(moved)) is not None
    assert (slot.gpu, slot.is_open, slot.core_limit) == (UUID(stage.gpus[1][4:]), True, 50)
    await goes_on(stage, moved)
    usage = await fast.expect(wire.Usage, lambda frame: frame.assignments[0].memory_bytes > 0)
    assert usage.assignments[0].memory_bytes == before * MIB
    await eventually(lambda: file.exists() and stage.gpus[1] in file.read_text())
    assert stage.gpus[0] not in file.read_text()
    # A program that starts now is on the new GPU, under the same limit.
    await load(stage, moved, "--memory", "256MiB")
    await eventually(lambda: used_mib(stage, 1) > before + 256)
    assert used_mib(stage, 0) == 0
    # And back, where others may have been meanwhile.
    fast.forget()
    again = await wish(fast, 4, moved, suspended=True, generation=4)
    await fast.state(held.uid, "suspended", 4)
    await resume_on(fast, stage, again, 0, generation=5)
    await fast.state(held.uid, "in_force", 5)
    assert used_mib(stage, 1) == 0
    assert used_mib(stage, 0) > before + 256
    await goes_on(stage, held)


async def test_a_limit_holds_on_the_new_gpu(stage: Stage, fast: Connection) -> None:
    held = stage.assignment(memory_bytes=GIB)
    await put(fast, 1, held)
    await load(stage, held, "--memory", "256MiB")
    wanted = await suspended(fast, held)
    await resume_on(fast, stage, wanted, 1)
    await fast.state(held.uid, "in_force", 3)
    options = ("--json", "--kernel-us", "0", "--seconds", "1")
    for size, code in (("900MiB", 2), ("256MiB", 0)):
        _, out, _ = await stage.executed(held.claim_uid, str(GPULOAD), *options, "--memory", size)
        said = [json.loads(line) for line in out.splitlines()]
        assert [one["error"] for one in said if one.get("event") == "hold"] == [code]


async def test_a_claim_without_programs_moves_at_once(stage: Stage, fast: Connection) -> None:
    held = stage.assignment()
    await put(fast, 1, held)
    wanted = await suspended(fast, held)
    moved = await resume_on(fast, stage, wanted, 1)
    await fast.state(held.uid, "in_force", 3)
    await load(stage, moved, "--memory", "256MiB")
    await eventually(lambda: used_mib(stage, 1) > 256)


async def test_two_shares_of_a_claim_exchange_their_gpus(stage: Stage, fast: Connection) -> None:
    one = stage.assignment(memory_bytes=4 * GIB)
    two = stage.assignment(gpu=1, claim_uid=one.claim_uid, memory_bytes=2 * GIB)
    await put(fast, 1, one, two)
    await load(stage, one, "--memory", "1GiB")
    before = used_mib(stage)
    frame = [
        wire.Desired(
            frame=number,
            assignments=[
                changed(item, generation=number, suspended=number == 2, gpu_uuid=gpu)
                for item, gpu in zip((one, two), gpus, strict=True)
            ],
        )
        for number, gpus in ((2, stage.gpus[:2]), (3, stage.gpus[1::-1]))
    ]
    await fast.send(frame[0])
    await fast.state(one.uid, "suspended", 2)
    await fast.send(frame[1])
    await fast.state(one.uid, "in_force", 3)
    await fast.state(two.uid, "in_force", 3)
    assert (used_mib(stage, 0), used_mib(stage, 1)) == (0, before)
    slots = [stage.slot(item) for item in (one, two)]
    assert [(slot.gpu, slot.memory_bytes) for slot in slots if slot] == [
        (UUID(stage.gpus[1][4:]), 4 * GIB),
        (UUID(stage.gpus[0][4:]), 2 * GIB),
    ]


async def test_a_gpu_without_room_is_refused_and_nothing_is_lost(stage: Stage, fast: Connection) -> None:
    held, other = stage.assignment(), stage.assignment(gpu=1, memory_bytes=23 * GIB)
    await put(fast, 1, held, other)
    program = await load(stage, held, "--memory", "2GiB")
    await load(stage, other, "--memory", "22GiB")
    before = used_mib(stage)
    await fast.send(wire.Desired(frame=2, assignments=[changed(held, suspended=True, generation=2), other]))
    await fast.state(held.uid, "suspended", 2)
    there = changed(held, generation=3, gpu_uuid=stage.gpus[1])
    await fast.send(wire.Desired(frame=3, assignments=[there, other]))
    words = str((await refusal(fast, held.uid, 3)).suspend_refused)
    assert f"must be free on {stage.gpus[1]}" in words
    # The server then wants it where it was.
    await fast.send(wire.Desired(frame=4, assignments=[changed(held, generation=4), other]))
    await fast.state(held.uid, "in_force", 4)
    assert used_mib(stage) == before
    assert program.poll() is None
    await goes_on(stage, held)


async def test_a_map_that_the_driver_refuses_leaves_all_suspended(stage: Stage) -> None:
    """The second of two programs has only its own GPU's device file, which the simulated one cannot show beforehand."""
    link = await begin(stage)
    held = stage.assignment()
    await put(link, 1, held)
    first = await load(stage, held, "--memory", "512MiB")
    second = stage.exec(held.claim_uid, str(GPULOAD), "--memory", "256MiB", GPUCLOUD_SIM_HIDDEN="1")
    await eventually(lambda: used_mib(stage) > 768)
    before = used_mib(stage)
    wanted = await suspended(link, held)
    await resume_on(link, stage, wanted, 1)
    words = str((await refusal(link, held.uid, 3)).suspend_refused)
    assert "saw other GPUs when the program began" in words
    await link.state(held.uid, "suspended", 3)
    assert (used_mib(stage, 0), used_mib(stage, 1)) == (0, 0)
    link.forget()
    await resume_on(link, stage, wanted, 0, generation=4)
    await link.state(held.uid, "in_force", 4)
    # Also that one of the two that had been on the other GPU for a moment.
    assert (used_mib(stage, 0), used_mib(stage, 1)) == (before, 0)
    assert (first.poll(), second.poll()) == (None, None)
    await goes_on(stage, held)


@pytest.mark.parametrize("victim", ["agent", "helper", "agent, before the order"])
async def test_a_kill_within_a_move_ends_on_the_new_gpu(stage: Stage, victim: str) -> None:
    link = await begin(stage, GPUCLOUD_SIM_CHECKPOINT_RATE="1000")
    held = stage.assignment()
    await put(link, 1, held)
    programs = [await load(stage, held, "--memory", "1GiB") for _ in range(2)]
    await eventually(lambda: used_mib(stage) > 2048)
    before = used_mib(stage)
    wanted = await suspended(link, held)
    await resume_on(link, stage, wanted, 1)
    if victim == "agent, before the order":
        await eventually(lambda: (slot := stage.slot(held)) and slot.gpu == UUID(stage.gpus[1][4:]))
    else:
        await eventually(lambda: used_mib(stage, 1) > 0 or bool(find_helpers(stage)))
        await asyncio.sleep(0.4)
    if victim == "helper":
        for pid in find_helpers(stage):
            os.kill(pid, signal.SIGKILL)
    else:
        await stage.kill()
        stage.start(**(FAST | {"GPUCLOUD_SIM_CHECKPOINT_RATE": "1000"}))
        link = await stage.control.connection()
        await link.expect(wire.Hello)
        await resume_on(link, stage, wanted, 1)
    await link.state(held.uid, "in_force", 3)
    assert (used_mib(stage, 0), used_mib(stage, 1)) == (0, before)
    assert [program.poll() for program in programs] == [None, None]
    await goes_on(stage, held)


# ---- The map ----

A, B, C = (f"GPU-{letter * 8}-1111-2222-3333-444444444444" for letter in "abc")


@pytest.mark.parametrize(
    ("moves", "whole"),
    [
        ({A: B}, {A: B, B: A, C: C}),
        ({A: B, B: C}, {A: B, B: C, C: A}),
        ({A: B, B: A}, {A: B, B: A, C: C}),
        ({A: A, B: C}, {A: A, B: C, C: B}),
    ],
)
def test_a_map_names_every_gpu_once_each_way(moves: dict[str, str], whole: dict[str, str]) -> None:
    assert dict(moving.complete_map(moves, [A, B, C])) == whole


def machine(*models: str, cuda: int = 13000) -> moving.Machine:
    gpus = [
        wire.Gpu(uuid=uuid, index=index, model=model, memory_bytes=GIB)
        for index, (uuid, model) in enumerate(zip((A, B, C), models, strict=False))
    ]
    return moving.Machine(Inventory(tuple(gpus)), cuda)


def test_what_a_machine_cannot_move() -> None:
    assert moving.find_hindrance(machine("X", "X")) is None
    assert "no two of one model" in str(moving.find_hindrance(machine("X", "Y")))
    assert "no two of one model" in str(moving.find_hindrance(machine("X")))
    assert "580" in str(moving.find_hindrance(machine("X", "X", cuda=12080)))


def test_a_gpu_of_another_model_is_refused() -> None:
    words = moving.refuse_places(machine("X", "X", "Y"), [{"one": A}], {"one": C})
    assert words is not None
    assert "is a Y" in words
    assert moving.refuse_places(machine("X", "X", "Y"), [{"one": A}], {"one": B}) is None


def test_a_program_with_its_own_device_files_only_stays() -> None:
    me = Process(os.getpid(), 1)
    inventory = machine("X", "X").inventory._replace(minors={A: 250, B: 251})
    assert not Path("/dev/nvidia250").exists()
    maps, words = moving.find_maps({me: {"one": A}}, {"one": B}, inventory)
    assert maps == {}
    assert "no device file of" in str(words)
