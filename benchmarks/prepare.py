"""`make bench-prepare`: the agent's own work on each of many ResourceClaims that come at once.

A real agent on the simulated driver, asked over its real socket as a kubelet asks: one call for each pod, all at once.
A test server sends the claims in batches, each with the whole desired state, as `manage.py clusters` places them; some
older claims of the node end meanwhile, and other programs fill /proc and use the processors, as containers that start.
The times are the agent's: from the moment at which a claim could be prepared until its answer was ready.
"""

import argparse
import asyncio
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from msgspec import structs

from agent import wire
from benchmarks.agent import cost
from benchmarks.report import Row, print_report, spread_ms
from tests.agent.control import Connection, Control
from tests.agent.plugin_watcher import PluginWatcher
from tests.agent.resource_claims import allocate, registered, resource_claim, start
from tests.agent.stage import GPULOAD, Stage, eventually, tether

GPUS, CORE, MIB = 4, 1, 1 << 20
LINE = re.compile(r"event=claim-prepared .*worked_ms=(\S+)")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="make bench-prepare", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--claims", type=int, default=100, help="at once (100)")
    parser.add_argument("--batch", type=int, default=10, help="claims that the server places together (10)")
    parser.add_argument("--between", type=float, default=0.15, help="seconds between two batches (0.15)")
    parser.add_argument("--ending", type=int, default=20, help="claims with a program that end meanwhile (20)")
    parser.add_argument("--programs", type=int, default=300, help="idle programs of the machine (300)")
    parser.add_argument("--burners", type=int, default=4, help="programs that use all the processor they get (4)")
    parser.add_argument("--runs", type=int, default=3, help="runs (3)")
    options = parser.parse_args()
    code = ["import time; time.sleep(600)"] * options.programs + ["while True: pass"] * options.burners
    others = [subprocess.Popen(tether(sys.executable, "-I", "-S", "-c", one)) for one in code]
    try:
        rows = [asyncio.run(measure(options)) for _ in range(options.runs)]
    finally:
        for program in others:
            program.kill()
            program.wait()
    print_report("prepare", rows)


async def measure(options: argparse.Namespace) -> Row:
    """Return the row of one burst."""
    with (
        tempfile.TemporaryDirectory(prefix="gpucloud-bench-") as directory,
        tempfile.TemporaryDirectory(prefix="gpucloud-bench-", dir="/dev/shm") as run,
    ):
        control, watcher = Control(), PluginWatcher(Path(run) / "kubelet")
        await control.start()
        stage = Stage(Path(directory), Path(run), control, gpus=GPUS)
        watcher.start()
        try:
            link = await start(stage, watcher)
            return await _burst(stage, link, watcher, options)
        finally:
            await watcher.stop()
            stage.close()
            await control.stop()


async def _burst(stage: Stage, link: Connection, watcher: PluginWatcher, options: argparse.Namespace) -> Row:
    older = [_allocate(stage, number) for number in range(options.ending)]
    await link.send(wire.Desired(frame=1, assignments=older))
    for one in older:
        await link.state(one.uid, "in_force")
        stage.exec(one.claim_uid, str(GPULOAD), "--memory", "64MiB", "--kernel-us", "0")
    for one in older:
        await eventually(lambda one=one: stage.totals(one).memory_bytes, seconds=60)  # type: ignore[misc]
    await asyncio.sleep(2)
    driver, keys = await registered(watcher), [resource_claim(f"gpu-{number}") for number in range(options.claims)]
    asked = [asyncio.ensure_future(driver.prepare(key)) for key in keys]
    await asyncio.sleep(0.5)
    assert stage.agent is not None
    before = cost(stage.agent.pid)
    wanted = [_allocate(stage, number, key) for number, key in enumerate(keys)]
    ended = [structs.replace(one, present=False) for one in older]
    for frame, end in enumerate(range(options.batch, options.claims + options.batch, options.batch), start=2):
        await link.send(wire.Desired(frame=frame, assignments=[*ended, *wanted[:end]]))
        await asyncio.sleep(options.between)
    answers = [one for each in await asyncio.gather(*asked) for one in each.values()]
    assert not any(one.error for one in answers), [one.error for one in answers if one.error][:3]
    used = cost(stage.agent.pid).cpu_seconds - before.cpu_seconds
    found = [float(milliseconds) for milliseconds in LINE.findall(stage.log_text())]
    assert len(found) == options.claims
    return {"claims": options.claims, "batch": options.batch, **spread_ms(found), "agent's CPU s": used}


def _allocate(stage: Stage, number: int, key: tuple[str, str, str] | None = None) -> wire.Assignment:
    size: dict[str, Any] = {"core_request": CORE, "core_limit": CORE, "memory_bytes": 128 * MIB}
    return allocate(stage, key or resource_claim(f"older-{number}"), gpu=number % GPUS, **size)


if __name__ == "__main__":
    main()
