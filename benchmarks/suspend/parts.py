"""The parts of the measurement: cycles, room that is lent, parts that are killed, what is refused."""

import asyncio
import contextlib
import os
import shutil
import signal
import statistics
import subprocess
import time
from pathlib import Path

from benchmarks.report import Row, quantile
from benchmarks.suspend.machine import Bench, Program
from tests.agent.stage import Stage

# A step has a pause: enough to be in the middle of something.
AWAY_SECONDS = 0.2


async def cycles(bench: Bench, name: str, kinds: list[str], gib: float, count: int) -> Row:
    """Suspend and resume a claim with these programs so often; compare with an undisturbed run beside it."""
    end = time.monotonic() + bench.part_seconds
    held = await bench.claim(len(kinds) * (gib + 2), core=50)
    programs = [Program(bench.stage, held, kind, gib) for kind in kinds]
    undisturbed = None if bench.simulated else Program(bench.stage, None, kinds[0], gib)
    for program in programs:
        await program.goes_on(5)
    before = bench.of_programs_mib(programs)
    probes = not bench.simulated and kinds[0] != "jax"
    largest = await programs[0].probe() if probes else 0
    out, back, meanwhile, saved = list[float](), list[float](), list[int](), 0
    while len(back) < count and time.monotonic() < end:
        took, saved = await bench.suspend(held)
        out.append(took)
        meanwhile.append(bench.of_programs_mib(programs))
        await asyncio.sleep(AWAY_SECONDS)
        back.append(await bench.resume(held))
        for program in programs:
            await program.goes_on()
    after = bench.of_programs_mib(programs)
    again = await programs[0].probe() if probes else 0
    bench.check(
        f"{name}: {len(back)} cycles, and every program goes on", all(one.process.poll() is None for one in programs)
    )
    bench.check(f"{name}: by NVML its programs have at most {max(meanwhile)} MiB meanwhile", max(meanwhile) == 0)
    bench.check(f"{name}: the largest further allocation was {largest} MiB and is {again}", largest == again)
    if undisturbed is not None:
        await undisturbed.reaches(max(len(program.steps) for program in programs))
        compare(bench, name, programs, undisturbed)
        undisturbed.end()
    await bench.release(held)
    return {
        "programs": name, "cycles": len(back), "saved MiB": saved >> 20, "in use MiB": before, "after MiB": after,
        "out s": statistics.median(out), "p95": quantile(out, 0.95), "most": max(out),
        "back s": statistics.median(back), "p95 ": quantile(back, 0.95), "most ": max(back),
    }  # fmt: skip


def compare(bench: Bench, name: str, programs: list[Program], undisturbed: Program) -> None:
    """Compare each line that a program and the undisturbed one both have."""
    for at, program in enumerate(programs):
        common = set(undisturbed.steps) & set(program.steps)
        differ = [step for step in common if undisturbed.steps[step] != program.steps[step]]
        words = f"{name}, program {at}: losses and checksums of {len(common)} steps equal an undisturbed run's"
        bench.check(words, len(common) >= len(program.steps) - 1 and not differ)


async def refused(bench: Bench, kind: str, words: str, more: dict[str, str] | None = None) -> None:
    """Try to suspend a program whose memory the driver cannot move; it goes on, and is suspended once it can be."""
    held = await bench.claim(8)
    program = Program(bench.stage, held, kind, 0.25, more)
    await program.goes_on(3)
    try:
        await bench.suspend(held)
        bench.check(f"{kind}: is refused", False)
    except RuntimeError as found:
        bench.check(f"{kind}: is refused before anything is stopped: {found}", words in str(found))
    await program.goes_on()
    bench.check(f"{kind}: the program goes on", program.process.poll() is None)
    if kind != "mps":
        # The program closes or frees it, and says so by its next step.
        assert program.process.stdin is not None
        program.process.stdin.write("\n")
        program.process.stdin.flush()
        await asyncio.to_thread(program.largest.get, timeout=60)
        seconds, _ = await bench.suspend(held)
        await bench.resume(held)
        await program.goes_on()
        bench.check(f"{kind}: afterwards the claim is suspended ({seconds:.2f} s), and comes back", True)
    program.end()
    await bench.release(held)


async def refused_mps(bench: Bench, directory: Path) -> None:
    """Try it with a client of an MPS server of its own, which ends with it."""
    control = shutil.which("nvidia-cuda-mps-control")
    if control is None:
        bench.check("mps: this machine has no MPS", False)
        return
    pipes = {"CUDA_MPS_PIPE_DIRECTORY": str(directory / "mps"), "CUDA_MPS_LOG_DIRECTORY": str(directory / "mps-log")}
    for path in pipes.values():
        Path(path).mkdir(exist_ok=True)  # noqa: ASYNC240 - in memory
    environment = {**os.environ, **pipes}
    await asyncio.to_thread(subprocess.run, [control, "-d"], env=environment, check=True)
    try:
        await refused(bench, "mps", "MPS", pipes)
    finally:
        await asyncio.to_thread(subprocess.run, [control], input=b"quit\n", env=environment, check=False)


async def lend(bench: Bench, gib: float, other_gib: float) -> None:
    """Give the room of a suspended claim to another one; the first comes back when there is room again."""
    held = await bench.claim(gib + 2)
    program = Program(bench.stage, held, "plain", gib)
    await program.goes_on()
    await bench.suspend(held)
    other = await bench.claim(other_gib + 2)
    guest = Program(bench.stage, other, "plain", other_gib)
    await guest.goes_on()
    bench.check(f"another claim works with {other_gib} GiB in the room: {bench.used_mib()} MiB in use", True)
    try:
        await bench.resume(held)
        bench.check("a resumption without room is refused", False)
    except RuntimeError as refused:
        bench.check(f"a resumption without room is refused: {refused}", True)
    guest.end()
    await bench.release(other)
    await bench.resume(held)
    await program.goes_on()
    bench.check("with room the claim goes on", program.process.poll() is None)
    await bench.release(held)


async def kills(bench: Bench, gib: float) -> None:
    """Kill the helper within the checkpoint, then the agent, then the program while it is suspended."""
    held = await bench.claim(gib + 2)
    program = Program(bench.stage, held, "plain", gib)
    await program.goes_on()
    generation = await bench.want(held.uid, suspended=True)
    await asyncio.sleep(1.5)
    for pid in helpers(bench.stage):
        os.kill(pid, signal.SIGKILL)
    await bench.state(held.uid, "suspended", generation)
    await bench.resume(held)
    await program.goes_on()
    bench.check("a helper that is killed within the checkpoint: suspended, and back", program.process.poll() is None)
    generation = await bench.want(held.uid, suspended=True)
    await asyncio.sleep(1.5)
    await bench.stage.kill()
    await bench.start()
    await bench.state(held.uid, "suspended", generation)
    await bench.resume(held)
    await program.goes_on()
    bench.check("an agent that is killed within the checkpoint: suspended, and back", program.process.poll() is None)
    await bench.suspend(held)
    program.end()
    await asyncio.sleep(1)
    bench.check(
        f"a program that is killed while suspended: {bench.used_mib()} MiB in use", program.process.poll() is not None
    )
    await bench.resume(held)
    await bench.release(held)


def helpers(stage: Stage) -> list[int]:
    """Return the pids of living helpers."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if b"suspend/helper.py" in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
    return found
