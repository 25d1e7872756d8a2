"""Words of a server that suspends claims, and what the machine shows of it."""

import contextlib
import re
import subprocess
from pathlib import Path
from typing import Any

from agent import wire
from tests.agent.control import Connection
from tests.agent.stage import BUILD, Stage, eventually
from tests.agent.test_reconcile import changed

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
