"""Suspend and resume on this machine's first GPU: the agent itself, training programs under a claim, a server's words.

    python -m benchmarks.suspend [--cycles N] [--large-cycles N] [--gib N] [--parts NAME,...]
        [--part-seconds N] [--simulated]

An agent runs as root beside a stand-in for the server (tests/agent/control.py) that tells it what is wanted, as the
control plane does. Programs train meanwhile (benchmarks/shim/programs/suspended.py, suspended_jax.py); each line of
them is compared with an undisturbed run of the same seed, which goes on beside them under no claim.

    out      from the desired state being sent to `suspended` being received
    back     from the desired state being sent to `in_force` being received
    in use   memory of the claim's programs on the GPU by NVML

With --simulated, `gpuload` runs on the simulated driver instead: whether the script works, not how long anything takes.
"""

import argparse
import asyncio
import queue
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.report import Row, print_report
from benchmarks.suspend.machine import Bench
from benchmarks.suspend.parts import cycles, kills, lend, refused, refused_mps
from tests.agent.control import Control


async def run(options: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory(prefix="gpucloud-bench-", dir="/dev/shm") as directory:
        control = Control()
        await control.start()
        bench = Bench(Path(directory), control, simulated=options.simulated)
        bench.part_seconds = options.part_seconds
        rows = []
        try:
            await bench.start()
            for part in options.parts.split(","):
                try:
                    rows += await measure(bench, part, options, Path(directory))
                except (AssertionError, RuntimeError, TimeoutError, queue.Empty) as error:
                    bench.check(f"{part}: {error!r}", False)
                    print(bench.stage.log_text()[-2000:], flush=True)
                    await bench.leave()
        finally:
            if rows:
                print_report("suspend", rows)
            print("\n".join(bench.checks), flush=True)
            print(bench.stage.log_text(), file=sys.stderr, flush=True)
            bench.stage.close()
            await control.stop()


async def measure(bench: Bench, part: str, options: argparse.Namespace, directory: Path) -> list[Row]:
    """Run one part; return its rows."""
    large = 20 if not options.simulated else 8
    print(f"{time.strftime('%H:%M:%S')} {part}", flush=True)
    if part == "lend":
        await lend(bench, large, 62 if not options.simulated else 17)
        return []
    if part == "kills":
        await kills(bench, large)
        return []
    if part == "refused":
        await refused(bench, "managed", "managed memory")
        await refused(bench, "ipc", "memory of other processes open")
        await refused_mps(bench, directory)
        return []
    kinds = ["plain"] * 3 if part == "several" else ["plain"] if part in ("small", "large") else [part]
    gib = large if part == "large" else options.gib
    count = options.large_cycles if part == "large" else options.cycles
    return [await cycles(bench, f"{part}: {len(kinds)} x {gib:g} GiB", kinds, gib, count)]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--cycles", type=int, default=10)
    parser.add_argument("--large-cycles", type=int, default=3)
    parser.add_argument("--gib", type=float, default=2.0)
    parser.add_argument("--part-seconds", type=float, default=600.0)
    parser.add_argument("--parts", default="small,several,graph,loader,jax,large,lend,kills,refused")
    parser.add_argument("--simulated", action="store_true")
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
