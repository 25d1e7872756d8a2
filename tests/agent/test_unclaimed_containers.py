"""Programs in the pid namespace of a container without a claim, seen from the host."""

import asyncio
import contextlib
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from agent import wire
from agent.host import processes
from tests.agent.containers import namespaces_open
from tests.agent.control import Connection
from tests.agent.stage import BUILD, GPULOAD, Stage, eventually
from tests.agent.test_audit import found

MIB = 1 << 20

pytestmark = [
    pytest.mark.skipif(not namespaces_open(), reason="pid namespaces may not be made here"),
    pytest.mark.skipif(not processes.sees_all(), reason="another namespace is around this one"),
]


def start_inside(stage: Stage) -> Any:
    """Start a GPU program that is process 1 of a pid namespace of its own."""
    command = ["unshare", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child", str(GPULOAD)]
    program = subprocess.Popen(
        [*command, "--memory", "64MiB", "--kernel-us", "0"],
        env=stage.environment(LD_LIBRARY_PATH=str(BUILD / "sim"), GPUCLOUD_SIM_NODE=str(stage.node_file)),
        stdout=subprocess.PIPE,
    )
    stage.programs.append(program)
    return program


def pid_outside(program: Any) -> int:
    """Return the pid of its only child in this namespace."""
    return int(Path(f"/proc/{program.pid}/task/{program.pid}/children").read_text())


async def gpu_memory(link: Connection, stage: Stage, *, holds: int) -> int:
    """Return the first GPU's memory use in a new sample, once it is at least this much or, for 0, nothing."""

    def used(frame: wire.Usage) -> int:
        return next(gpu.memory_bytes for gpu in frame.gpus if gpu.uuid == stage.gpus[0])

    link.forget()
    frame = await link.expect(wire.Usage, lambda one: used(one) >= holds if holds else used(one) < MIB)
    return used(frame)


async def test_a_container_without_a_claim_is_found_by_its_number_on_the_machine(
    stage: Stage, link: Connection
) -> None:
    program = start_inside(stage)
    await asyncio.to_thread(program.stdout.readline)
    pid = pid_outside(program)
    event = await found(link, "process-unlimited", pid)
    assert event.process is not None
    assert event.process.command == "gpuload"


async def test_memory_of_a_container_that_was_killed_is_free_again(stage: Stage, link: Connection) -> None:
    program = start_inside(stage)
    await asyncio.to_thread(program.stdout.readline)
    assert await gpu_memory(link, stage, holds=64 * MIB) >= 64 * MIB
    pid = pid_outside(program)
    with contextlib.suppress(ProcessLookupError):
        processes.send(processes.find(pid), signal.SIGKILL)  # type: ignore[arg-type]
    await eventually(lambda: program.poll() is not None)
    await gpu_memory(link, stage, holds=0)
