"""`make bench-agent`: the cost of the agent on an idle machine.

A real agent with its arbiter on the simulated driver, a test server that acknowledges its messages, claims in force,
and no program or one idle program under each. CPU time and memory are the kernel's own account of the two processes
(/proc/PID/stat, smaps_rollup), read at both ends of the time; children that ended meanwhile are counted.
"""

import argparse
import asyncio
import contextlib
import os
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from agent import wire
from benchmarks.report import Row, print_report
from tests.agent.control import Connection, Control
from tests.agent.stage import GIB, GPULOAD, Stage, eventually

TICKS = os.sysconf("SC_CLK_TCK")
# utime, stime, cutime, cstime after the command's closing parenthesis (proc(5)).
TIMES = slice(11, 15)
SETTLE_SECONDS = 5.0


class Cost(NamedTuple):
    """Cost of one process so far."""

    cpu_seconds: float
    rss_mib: float
    pss_mib: float


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="make bench-agent", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=60.0, help="how long (60)")
    parser.add_argument("--gpus", type=int, default=8, help="of the node (8)")
    parser.add_argument("--assignments", type=int, default=32, help="on the node (32)")
    parser.add_argument("--runs", type=int, default=3, help="of each (3)")
    parser.add_argument("--programs", action="store_true", help="also with an idle program under each")
    options = parser.parse_args()
    rows: list[Row] = []
    for programs in (0, options.assignments) if options.programs else (0,):
        for _ in range(options.runs):
            rows += asyncio.run(measure(options.seconds, options.gpus, options.assignments, programs))
    print_report("agent", rows)


async def measure(seconds: float, gpus: int, assignments: int, programs: int) -> list[Row]:
    """Return a row for the agent and one for its arbiter."""
    with (
        tempfile.TemporaryDirectory(prefix="gpucloud-bench-") as directory,
        tempfile.TemporaryDirectory(prefix="gpucloud-bench-", dir="/dev/shm") as run,
    ):
        control = Control()
        await control.start()
        stage = Stage(Path(directory), Path(run), control, gpus=gpus)
        try:
            stage.start()
            link = await control.connection()
            hello = await link.expect(wire.Hello)
            stage.gpus = [gpu.uuid for gpu in hello.gpus]
            acknowledging = asyncio.create_task(_acknowledge(link))
            await _put(stage, link, assignments, programs)
            await asyncio.sleep(SETTLE_SECONDS)
            rows = await _measure_processes(stage, seconds, {"claims": assignments, "programs": programs, "GPUs": gpus})
            acknowledging.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await acknowledging
            return rows
        finally:
            stage.close()
            await control.stop()


async def _put(stage: Stage, link: Connection, assignments: int, programs: int) -> None:
    wanted = [
        stage.assignment(gpu=number % len(stage.gpus), core_request=25, core_limit=25, memory_bytes=4 * GIB)
        for number in range(assignments)
    ]
    await link.send(wire.Desired(frame=2, assignments=wanted))
    for one in wanted:
        await link.state(one.uid, "in_force")
    for one in wanted[:programs]:
        # The program has a context and memory, and launches nothing.
        stage.exec(one.claim_uid, str(GPULOAD), "--memory", "1GiB", "--kernel-us", "0")
    for one in wanted[:programs]:
        await eventually(lambda one=one: stage.totals(one).memory_bytes >= GIB, seconds=60)  # type: ignore[misc]


async def _measure_processes(stage: Stage, seconds: float, facts: Row) -> list[Row]:
    assert stage.agent is not None
    pids = {"agent": stage.agent.pid, "arbiter": stage.status()["arbiter"]["pid"]}
    before, begun = {name: cost(pid) for name, pid in pids.items()}, time.monotonic()
    await asyncio.sleep(seconds)
    lasted = time.monotonic() - begun
    rows: list[Row] = []
    for name, pid in pids.items():
        after = cost(pid)
        percent = 100 * (after.cpu_seconds - before[name].cpu_seconds) / lasted
        row: Row = {
            "process": name,
            **facts,
            "% of a core": percent,
            "RSS MiB": after.rss_mib,
            "PSS MiB": after.pss_mib,
        }
        rows.append(row)
    return rows


async def _acknowledge(link: Connection) -> None:
    """Acknowledge at once, as the real server does: unacknowledged messages are kept and sent again."""
    while True:
        heard = [frame.seq for frame in link.frames if isinstance(frame, wire.Usage)]
        if heard:
            link.frames[:] = [frame for frame in link.frames if not isinstance(frame, wire.Usage)]
            await link.send(wire.Ack(seq=max(heard)))
        await asyncio.sleep(0.2)


def cost(pid: int) -> Cost:
    """Return the kernel's counts for the process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    memory = {}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
        name, _, rest = line.partition(":")
        memory[name] = int(rest.split()[0]) / 1024
    return Cost(sum(map(int, fields[TIMES])) / TICKS, memory["Rss"], memory["Pss"])


if __name__ == "__main__":
    main()
