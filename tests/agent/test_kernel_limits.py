"""With a driver of r615, a claim's memory limit applies to programs that do not load libvcuda, too."""

import asyncio
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent import wire
from agent.host.cgroups import Group
from tests.agent.control import Connection
from tests.agent.stage import BUILD, GIB, GPULOAD, Stage, eventually
from tests.agent.test_groups import OPEN
from tests.agent.test_reconcile import changed, put

pytestmark = pytest.mark.skipif(2 not in OPEN, reason="control groups of version 2 cannot be made here")

# A static program, or one whose user unset it.
UNLIMITED = ("env", "-u", "LD_PRELOAD", str(GPULOAD), "--kernel-us", "0")


async def started(stage: Stage, *, driver: str = "615.71.00-sim", **more: Any) -> Connection:
    stage.change_driver(driver)
    stage.start(**more)
    link = await stage.control.connection()
    stage.gpus = [gpu.uuid for gpu in (await link.expect(wire.Hello)).gpus]
    return link


@pytest.fixture
async def link(stage: Stage) -> Connection:
    """Return a started agent, under the new driver."""
    return await started(stage)


@pytest.fixture
async def held(stage: Stage, link: Connection) -> wire.Assignment:
    """Put a claim in force: half a GPU, 4 GiB."""
    assignment = stage.assignment()
    await put(link, 1, assignment)
    return assignment


def limits(stage: Stage) -> dict[str, int]:
    """Return the driver's limits in MiB by control group."""
    shown = subprocess.run([BUILD / "simnode", "show", stage.node_file], capture_output=True, text=True, check=True)
    rows = [line.split() for line in shown.stdout.splitlines() if line.startswith("  limit ")]
    return {row[3]: int(row[1]) for row in rows if Path(row[3]).exists()}


def limit(stage: Stage, held: wire.Assignment) -> int | None:
    """Return the limit of the claim's only group, in MiB."""
    return next((mib for path, mib in limits(stage).items() if path.endswith(held.claim_uid)), None)


async def try_allocation(stage: Stage, held: wire.Assignment, size: str) -> str:
    """Return the driver's answer to a program without libvcuda that allocates this much after a second."""
    script = f"sleep 1; exec {' '.join(UNLIMITED)} --memory {size} --seconds 0.1"
    code, out, error = await stage.executed(held.claim_uid, "sh", "-c", script)
    assert code == 0, error
    return out


async def test_a_program_without_libvcuda_cannot_pass_the_claims_limit(stage: Stage, held: wire.Assignment) -> None:
    assert "hold 6144 MiB: CUDA_ERROR_OUT_OF_MEMORY" in await try_allocation(stage, held, "6GiB")
    assert "hold 3072 MiB: CUDA_SUCCESS" in await try_allocation(stage, held, "3GiB")


async def test_control_under_an_older_driver_it_can(stage: Stage) -> None:
    link = await started(stage, driver="580.00.00-sim")
    held = stage.assignment()
    await put(link, 1, held)
    assert "hold 6144 MiB: CUDA_SUCCESS" in await try_allocation(stage, held, "6GiB")
    assert limits(stage) == {}


async def test_a_moved_limit_moves_in_the_kernel_and_ends_with_the_claim(
    stage: Stage, link: Connection, held: wire.Assignment
) -> None:
    stage.exec(held.claim_uid, *UNLIMITED, "--memory", "3GiB")
    await eventually(lambda: limit(stage, held) == 4096)
    await link.send(wire.Desired(frame=2, assignments=[changed(held, generation=2, memory_bytes=8 * GIB)]))
    await eventually(lambda: limit(stage, held) == 8192)
    # Below the amount in use: that amount, and no more.
    await link.send(wire.Desired(frame=3, assignments=[changed(held, generation=3, memory_bytes=GIB)]))
    used = await eventually(lambda: (mib := limit(stage, held)) is not None and mib < 4096 and mib)
    assert used >= 3072
    await link.send(wire.Desired(frame=4, assignments=[changed(held, generation=4, present=False)]))
    await link.state(held.uid, "released", 4)
    await eventually(lambda: limits(stage) == {})
    assert "kernel-limit-not-set" not in stage.log_text()


async def test_an_agent_that_starts_anew_moves_the_limit_of_a_running_program(
    stage: Stage, link: Connection, held: wire.Assignment
) -> None:
    stage.exec(held.claim_uid, *UNLIMITED, "--memory", "1GiB")
    await eventually(lambda: limit(stage, held) == 4096)
    await stage.kill()
    assert limit(stage, held) == 4096
    link = await started(stage)
    await link.send(wire.Desired(frame=2, assignments=[changed(held, generation=2, memory_bytes=2 * GIB)]))
    await eventually(lambda: limit(stage, held) == 2048)


@pytest.fixture
def container() -> Iterator[Group]:
    """Create a container's group as a runtime does, named after its id."""
    path = OPEN[2].mount / f"docker-{uuid.uuid4().hex * 2}.scope"
    path.mkdir()
    group = Group(path)
    yield group
    group.kill()
    while not group.remove():
        pass


async def test_a_container_is_limited_though_no_program_in_it_ever_loads_libvcuda(
    stage: Stage, held: wire.Assignment, container: Group
) -> None:
    environment = {"GPUCLOUD_CLAIM_DIR": str(stage.claim_dir(held)), "PATH": "/usr/bin:/bin"}
    script = f"echo $$ > {container.path}/cgroup.procs; exec sleep 600"
    program = await asyncio.create_subprocess_exec("sh", "-c", script, env=environment)
    try:
        await eventually(lambda: limits(stage).get(str(container.path)) == 4096)
    finally:
        program.kill()
        await program.wait()


async def test_a_limit_that_cannot_be_set_is_told_and_ends_nothing(stage: Stage) -> None:
    # A kernel with the dmem controller, which is not enabled for the programs' groups.
    link = await started(stage, GPUCLOUD_SIM_DMEM="1")
    held = stage.assignment()
    await put(link, 1, held)
    program = stage.exec(held.claim_uid, "sleep", "600")
    event = await link.expect(wire.Event, lambda event: event.code == "kernel-limit-not-set")
    assert held.claim_uid in event.detail
    assert "dmem" in event.detail

    def bad(frame: wire.Conditions) -> bool:
        return any((one.type, one.reason) == ("KernelLimitsSet", "KernelLimitNotSet") for one in frame.conditions)

    frame = await link.expect(wire.Conditions, bad)
    assert not any(one.unschedulable for one in frame.conditions)
    assert stage.agent is not None
    assert stage.agent.poll() is None
    assert program.poll() is None
    assert len([one for one in link.frames if isinstance(one, wire.Event)]) == 1
