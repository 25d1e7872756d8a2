"""Moves of claims between two GPUs of this machine, as the agent itself makes them under training programs.

    python -m benchmarks.moves [--parts plain:2:4,graph:1:4,plain:20:2] [--simulated]

As `benchmarks.suspend`, whose programs and agent these are. A program trains under 50 % of a GPU while its claim moves
there and back; each line of it is compared with an undisturbed run of the same seed.

    pause    from the desired state being sent that suspends it to `in_force` being received on the other GPU
"""

import argparse
import asyncio
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pynvml

from agent import wire
from benchmarks.report import Row, print_report
from benchmarks.suspend.machine import Bench, Program
from benchmarks.suspend.parts import compare
from tests.agent.control import Control
from tests.agent.stage import BUILD
from tests.agent.suspensions import used_mib

MIB = 1 << 20
PARTS = "plain:2:4,graph:1:4,plain:20:2"


def in_use_mib(bench: Bench, gpu: int) -> int:
    """Return the memory in use on this GPU by NVML."""
    if bench.simulated:
        return used_mib(bench.stage, gpu)
    return int(pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(gpu)).used) >> 20


async def move(bench: Bench, held: wire.Assignment, gpu: int) -> float:
    """Move the claim to this GPU; return for how many seconds its programs stood still."""
    begun = time.monotonic()
    await bench.suspend(held)
    await bench.state(held.uid, "in_force", await bench.want(held.uid, suspended=False, gpu_uuid=bench.stage.gpus[gpu]))
    return time.monotonic() - begun


async def back_and_forth(bench: Bench, kind: str, gib: float, count: int) -> Row:
    """Move a claim with this program so often; compare with an undisturbed run."""
    name = f"{kind}, {gib:g} GiB"
    free = [in_use_mib(bench, gpu) for gpu in (0, 1)]
    held = await bench.claim(gib + 2, core=50)
    program = Program(bench.stage, held, kind, gib)
    await program.goes_on(5)
    before, pauses, places, accounts = in_use_mib(bench, 0), list[float](), list[bool](), list[int]()
    largest = await program.probe() if not bench.simulated else 0
    for at in range(count):
        there = 1 - at % 2
        pauses.append(await move(bench, held, there))
        await program.goes_on()
        here, left = in_use_mib(bench, there) - free[there], in_use_mib(bench, 1 - there) - free[1 - there]
        places.append(left <= 8 and here > gib * 1024)
        accounts.append(bench.stage.totals(held).memory_bytes // MIB)
    again = await program.probe() if not bench.simulated else 0
    moved_back = f"{name}: {count} moves, each with all of its memory on the other GPU and none on the one left"
    bench.check(moved_back, all(places))
    bench.check(f"{name}: the largest further allocation was {largest} MiB and is {again}", largest == again)
    bench.check(f"{name}: its account has {accounts} MiB, of {before - free[0]} by NVML", min(accounts) > gib * 1024)
    await bench.release(held)
    if not bench.simulated:
        undisturbed = Program(bench.stage, None, kind, gib)
        await undisturbed.reaches(len(program.steps))
        compare(bench, name, [program], undisturbed)
        undisturbed.end()
    return {
        "program": name, "moves": count, "in use MiB": before - free[0],
        "pause s": statistics.median(pauses), "pause most s": max(pauses),
    }  # fmt: skip


def make_two(bench: Bench) -> None:
    """Replace the simulated node by one of two GPUs."""
    bench.stage.node_file.unlink()
    node = [str(BUILD / "simnode"), "create", str(bench.stage.node_file), "--name", "sim-1"]
    subprocess.run([*node, "--gpus", "2", "--memory", "80GiB"], check=True)


async def run(options: argparse.Namespace) -> None:
    """Run all parts and print them."""
    with tempfile.TemporaryDirectory(prefix="gpucloud-bench-", dir="/dev/shm") as directory:
        control, rows = Control(), list[Row]()
        await control.start()
        bench = Bench(Path(directory), control, simulated=options.simulated)
        if options.simulated:
            make_two(bench)
        try:
            await bench.start()
            for part in options.parts.split(","):
                kind, gib, count = part.split(":")
                rows.append(await back_and_forth(bench, kind, float(gib), int(count)))
        finally:
            if rows:
                print_report("moves", rows)
            print(bench.stage.log_text()[-3000:], file=sys.stderr, flush=True)
            bench.stage.close()
            await control.stop()


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--parts", default=PARTS, help=f"programs, GiB of their blocks, and moves of each ({PARTS})")
    parser.add_argument("--simulated", action="store_true", help="on the simulated driver: whether it works")
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
