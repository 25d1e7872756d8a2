"""Packing on this machine's two GPUs: launches a second alone and together, by the agent, PyTorch and the real core.

    python -m benchmarks.packing [--window 12] [--keep 90] [--simulated]

An agent runs as root beside a stand-in for the server, as in `benchmarks.suspend`. Two claims run alone on a GPU each
for a window; what the agent reports of them is what the control plane keeps as their profiles. `packing.planning` then
decides, as there. A pair that it makes is moved together, one that it refuses is put together all the same; after
another window it decides again, and a pair that it parts is moved apart. The arbiter gives turns meanwhile.

    alone      launches a second, and the share of GPU time in percent, of each claim alone
    predicted  the percentage of its rate that each keeps, by the GPU time alone
    kept       the percentage of its launches a second that each has beside the other one
    waited     the share of time in which its launches waited for a turn, beside the other one

With --simulated, `gpumix` runs on the simulated driver: whether the script works.
"""

import argparse
import asyncio
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from agent import wire
from apps.packing.planning import Device, Rates, Running, Step, plan, predict
from apps.rebalancing.values import Bounds
from benchmarks.moves import make_two, move
from benchmarks.report import Row, print_report
from benchmarks.suspend.machine import Bench
from tests.agent.control import Control
from tests.agent.stage import BUILD, GIB, ROOT, SECRET
from tests.agent.test_reconcile import changed

CLAIM_GIB = 16
CORE = 50
BOUNDS = Bounds()
# A program is past its start after this, and the arbiter knows a newcomer.
IMPORT_SECONDS, SETTLE_SECONDS = 60, 2.0
PROGRAMS = {
    "CNN, 22 %": ("cnn", "--model", "small", "--need", "22"),
    "CNN, 45 %": ("cnn", "--model", "small", "--need", "45"),
    "large CNN, 30 %": ("cnn", "--model", "large", "--need", "30"),
    "GEMM": ("gemm", "--size", "8192"),
}
PAIRS = (
    ("CNN, 22 %", "large CNN, 30 %"),
    ("CNN, 45 %", "CNN, 45 %"),
    ("GEMM", "large CNN, 30 %"),
)
SIMULATED = (("--durations-us", "50", "--cpu-us", "400"), ("--durations-us", "300", "--cpu-us", "400"))


@dataclass(slots=True)
class Half:
    """One claim of a pair: where it is, and what was measured of it."""

    name: str
    held: wire.Assignment
    gpu: int
    process: "subprocess.Popen[bytes]"
    alone: Rates | None = None
    now: Rates | None = None
    waited: float = 0.0

    @property
    def wants(self) -> bool:
        """Return whether it used the GPU, or waited for it, by the usual bounds of a pool."""
        return self.now is not None and (self.now.core > BOUNDS.idle_percent or self.waited > BOUNDS.throttled_percent)

    def running(self, gpus: list[str]) -> Running:
        """Return the claim as the core takes it."""
        memory_mib = self.held.memory_bytes >> 20
        return Running(self.held.uid, gpus[self.gpu], CORE, memory_mib, self.alone, self.now, wants=self.wants)


def start(bench: Bench, name: str, held: wire.Assignment, at: int) -> "subprocess.Popen[bytes]":
    """Start a program under the claim; it runs until it is killed."""
    module = [sys.executable, "-m", f"benchmarks.shim.programs.{PROGRAMS[name][0]}", "--seconds", "0"]
    command = [*module, *PROGRAMS[name][1:]]
    if bench.simulated:
        command = [str(BUILD / "gpumix"), *SIMULATED[at]]
    variables = {"GPUCLOUD_CLAIM_SECRET": SECRET, "GPUCLOUD_AGENT_SOCKET": str(bench.stage.run_dir / "agent.sock")}
    process = subprocess.Popen(
        [sys.executable, "-m", "agent", "exec", held.claim_uid, "--", *command],
        env=bench.stage.environment(**variables), stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL, cwd=ROOT,
    )  # fmt: skip
    bench.stage.programs.append(process)
    return process


def usages(bench: Bench, uid: str, since: int = 0) -> list[wire.AssignmentUsage]:
    """Return what the agent has reported of the assignment since this frame."""
    frames = [frame for frame in bench.link.frames if isinstance(frame, wire.Usage)]
    return [one for frame in frames[since:] for one in frame.assignments if one.uid == uid]


async def measure(bench: Bench, halves: list[Half], seconds: float) -> None:
    """Take the means of a window, as the control plane does."""
    await asyncio.sleep(SETTLE_SECONDS)
    bench.link.forget()
    await asyncio.sleep(seconds)
    for half in halves:
        seen = usages(bench, half.held.uid)
        launches = statistics.mean(one.launches_per_second or 0.0 for one in seen)
        half.now = Rates(launches, statistics.mean(one.core_percent for one in seen))
        half.waited = statistics.mean(one.throttled_percent for one in seen)
        assert half.process.poll() is None, f"{half.name} has ended: {half.process.returncode}"


def decide(bench: Bench, halves: list[Half], keep: int) -> list[Step]:
    """Return the core's steps for this node, on which one claim waits for a GPU."""
    gpus = bench.stage.gpus[:2]
    free = [CORE * (2 - sum(half.gpu == at for half in halves)) for at in (0, 1)]
    room = [bench.card_mib - sum(half.held.memory_bytes >> 20 for half in halves if half.gpu == at) for at in (0, 1)]
    devices = [Device(uuid, "node", "model", free[at], room[at]) for at, uuid in enumerate(gpus)]
    return plan(devices, [half.running(gpus) for half in halves], keep_percent=keep, most_packed=1)


async def take(bench: Bench, halves: list[Half], step: Step) -> None:
    """Move the claim that the step names."""
    mover = next(half for half in halves if half.held.uid == step.claim)
    mover.gpu = bench.stage.gpus.index(step.to_gpu)
    await move(bench, mover.held, mover.gpu)


async def claim(bench: Bench, gpu: int) -> wire.Assignment:
    """Put a claim of half of this GPU, which may use all that is free, in force."""
    limits = {"core_request": CORE, "core_limit": 100, "memory_bytes": CLAIM_GIB * GIB}
    held = bench.stage.assignment(gpu, **limits)
    bench.wanted[held.uid] = changed(held, generation=0)
    await bench.state(held.uid, "in_force", await bench.want(held.uid))
    return held


async def wait_for_launches(bench: Bench, half: Half) -> None:
    """Wait until the program is past its imports and launches."""
    end = time.monotonic() + IMPORT_SECONDS
    while not any((one.launches_per_second or 0) > 1 for one in usages(bench, half.held.uid)[-2:]):
        assert half.process.poll() is None, f"{half.name} has ended: {half.process.returncode}"
        assert time.monotonic() < end, f"{half.name} launches nothing"
        await asyncio.sleep(0.2)


async def pair(bench: Bench, names: tuple[str, str], options: argparse.Namespace) -> Row:
    """Measure a pair alone, together, and apart if it is parted."""
    halves = []
    for gpu, name in enumerate(names):
        held = await claim(bench, gpu)
        halves.append(Half(name, held, gpu, start(bench, name, held, gpu)))
    for half in halves:
        await wait_for_launches(bench, half)
    await asyncio.sleep(options.start)
    await measure(bench, halves, options.window)
    for half in halves:
        half.alone = half.now
    alone = [half.alone for half in halves if half.alone is not None]
    steps = decide(bench, halves, options.keep)
    packed = [step for step in steps if step.kind == "pack"]
    together = packed or [Step("pack", halves[1].held.uid, halves[0].held.uid, bench.stage.gpus[0], 0.0)]
    await take(bench, halves, together[0])
    await measure(bench, halves, options.window)
    kept, waited = [half.running(bench.stage.gpus).keeps for half in halves], [half.waited for half in halves]
    parted = [step for step in decide(bench, halves, options.keep) if step.kind == "unpack"]
    again: list[float | None] = []
    if parted:
        await take(bench, halves, parted[0])
        await measure(bench, halves, options.window)
        again = [half.running(bench.stage.gpus).keeps for half in halves]
    for half in halves:
        half.process.kill()
        half.process.wait()
    await bench.leave()
    return {
        "programs": " + ".join(names),
        "alone, launches/s": join(rates.launches for rates in alone),
        "alone, GPU %": join(rates.core for rates in alone),
        "predicted": predict(alone[0], alone[1]),
        "packed": "yes" if packed else "no",
        "kept %": join(kept),
        "waited %": join(waited),
        "parted": "yes" if parted else "no",
        "apart again, kept %": join(again),
    }


def join(values: Iterable[float | None]) -> str:
    """Format figures of both for one cell."""
    return " / ".join("–" if value is None else f"{value:.1f}" for value in values) or "–"


async def run(options: argparse.Namespace) -> None:
    """Measure all pairs and print them."""
    with tempfile.TemporaryDirectory(prefix="gpucloud-bench-", dir="/dev/shm") as directory:
        control, rows = Control(), list[Row]()
        await control.start()
        bench = Bench(Path(directory), control, simulated=options.simulated)
        if options.simulated:
            make_two(bench)
        try:
            await bench.start()
            for names in PAIRS[:1] if options.simulated else PAIRS:
                try:
                    rows.append(await pair(bench, names, options))
                    print(rows[-1], flush=True)
                except (AssertionError, RuntimeError, TimeoutError, statistics.StatisticsError) as error:
                    bench.check(f"{' + '.join(names)}: {error!r}", False)
                    bench.stage.programs[-1].kill()
                    await bench.leave()
        finally:
            if rows:
                print_report("packing", rows)
            print(bench.stage.log_text()[-3000:], file=sys.stderr, flush=True)
            bench.stage.close()
            await control.stop()


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--window", type=float, default=12.0, help="seconds of a window (12)")
    parser.add_argument("--start", type=float, default=4.0, help="seconds between the first launches and a window (4)")
    parser.add_argument("--keep", type=int, default=90, help="the pool's pack_keep_percent (90)")
    parser.add_argument("--simulated", action="store_true", help="on the simulated driver: whether it works")
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
