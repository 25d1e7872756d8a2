"""Suspend and resume on this machine's first GPU: the agent itself, training programs under a claim, a server's words.

    python -m benchmarks.suspend [--cycles N] [--large-cycles N] [--simulated]

An agent runs as root beside a stand-in for the server (tests/agent/control.py) that tells it what is wanted, as the
control plane does. Programs train meanwhile (benchmarks/shim/programs/suspended.py); each line of them is compared with
an undisturbed run of the same seed.

    out      from the desired state being sent to `suspended` being received
    back     from the desired state being sent to `in_force` being received
    used     memory in use on the GPU by NVML at that moment

With --simulated, `gpuload` runs on the simulated driver instead: whether the script works, not how long anything takes.
"""

import argparse
import asyncio
import contextlib
import os
import queue
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import pynvml

from agent import wire
from benchmarks.report import Row, print_report
from tests.agent.control import Connection, Control
from tests.agent.stage import BUILD, GIB, GPULOAD, ROOT, Stage
from tests.agent.test_reconcile import changed

MIB = 1 << 20
PROGRAM = ROOT / "benchmarks" / "shim" / "programs" / "suspended.py"
STEPS = 100_000
# A step has a pause: enough to be in the middle of something.
AWAY_SECONDS = 0.5
CONTEXT_MIB = 1024


class Program:
    """A training program under the claim, and the lines that it has printed."""

    def __init__(self, stage: Stage, held: wire.Assignment, kind: str, gib: float) -> None:
        command = [sys.executable, str(PROGRAM), kind, str(gib), str(STEPS)]
        if stage.simulated:  # type: ignore[attr-defined]
            command = [str(GPULOAD), "--memory", f"{int(gib)}GiB", "--interval", "0.1"]
        variables = {"GPUCLOUD_CLAIM_SECRET": "the secret of every claim in these tests"}
        self.kind, self.steps = kind, dict[int, str]()
        self.largest: queue.Queue[int] = queue.Queue()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "agent", "exec", held.claim_uid, "--", *command],
            env=stage.environment(**variables, GPUCLOUD_AGENT_SOCKET=str(stage.run_dir / "agent.sock")),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
        )  # fmt: skip
        stage.programs.append(self.process)  # type: ignore[arg-type]
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for at, line in enumerate(self.process.stdout):
            words = line.split()
            if words[:1] == ["largest"]:
                self.largest.put(int(words[1]))
            elif words[:1] == ["step"]:
                self.steps[int(words[1])] = " ".join(words[2:])
            else:
                self.steps[at] = ""

    async def goes_on(self, steps: int = 3) -> None:
        """Wait until it has made so many further steps."""
        before, end = len(self.steps), time.monotonic() + 45
        while len(self.steps) < before + steps:
            assert self.process.poll() is None, f"{self.kind} has ended: {self.process.returncode}"
            assert time.monotonic() < end, f"{self.kind} makes no steps"
            await asyncio.sleep(0.02)

    async def probe(self) -> int:
        """Return the largest allocation that it can have, in MiB."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return await asyncio.to_thread(self.largest.get, timeout=60)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


class Bench:
    """One machine with its agent."""

    def __init__(self, root: Path, control: Control, *, simulated: bool) -> None:
        self.stage = Stage(root, root / "run", control, gpus=1)
        self.stage.simulated = simulated  # type: ignore[attr-defined]
        self.control, self.simulated, self.frame = control, simulated, 0
        self.wanted: dict[str, wire.Assignment] = {}
        self.checks: list[str] = []

    async def start(self, *, host_memory_mib: int = 100 << 10) -> None:
        """Start the agent, and take its first words."""
        variables: dict[str, Any] = {
            "GPUCLOUD_SUSPEND_MEMORY_MIB": str(host_memory_mib),
            "GPUCLOUD_SUSPEND_SECONDS": "15",
        }
        if not self.simulated:
            variables["GPUCLOUD_SIM_NODE"] = ""
        self.stage.start(**variables)
        self.link: Connection = await self.control.connection(seconds=60)
        hello = await self.link.expect(wire.Hello)
        self.stage.gpus = [gpu.uuid for gpu in hello.gpus]
        self.card_mib = hello.gpus[0].memory_bytes // MIB
        if not self.simulated:
            pynvml.nvmlInit()

    def used_mib(self) -> int:
        if self.simulated:
            shown = subprocess.run(
                [BUILD / "simnode", "show", self.stage.node_file], capture_output=True, text=True, check=True
            )
            return int(shown.stdout.rpartition("/")[0].rpartition(" ")[2])
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        return int(pynvml.nvmlDeviceGetMemoryInfo(handle).used) >> 20

    async def want(self, uid: str, **more: Any) -> int:
        """Send the desired state with this change; return the assignment's new generation."""
        one = self.wanted[uid]
        self.wanted[uid] = changed(one, generation=one.generation + 1, **more)
        self.frame += 1
        self.link.forget()
        await self.link.send(wire.Desired(frame=self.frame, assignments=list(self.wanted.values())))
        return one.generation + 1

    async def state(self, uid: str, state: str, generation: int) -> wire.Observation:
        """Wait for this state; a refusal ends the run, in words."""
        while True:
            frame = await self.link.expect(wire.Observed, seconds=60)
            for one in frame.assignments:
                if one.uid == uid and one.generation == generation:
                    if isinstance(one.suspend_refused, str):
                        raise RuntimeError(one.suspend_refused)
                    if one.state == state:
                        return one
            # Those that are left are newer.
            self.link.frames.remove(frame)

    async def claim(self, memory_gib: float, core: int = 100) -> wire.Assignment:
        """Put a claim in force."""
        held = self.stage.assignment(memory_bytes=int(memory_gib * GIB), core_request=core, core_limit=core)
        self.wanted[held.uid] = changed(held, generation=0)
        await self.state(held.uid, "in_force", await self.want(held.uid))
        return held

    async def release(self, held: wire.Assignment) -> None:
        generation = await self.want(held.uid, present=False)
        await self.state(held.uid, "released", generation)
        del self.wanted[held.uid]

    async def suspend(self, held: wire.Assignment) -> tuple[float, int]:
        """Suspend; return the seconds and the bytes saved."""
        begun = time.monotonic()
        one = await self.state(held.uid, "suspended", await self.want(held.uid, suspended=True))
        assert isinstance(one.saved_bytes, int)
        return time.monotonic() - begun, one.saved_bytes

    async def resume(self, held: wire.Assignment) -> float:
        begun = time.monotonic()
        await self.state(held.uid, "in_force", await self.want(held.uid, suspended=False))
        return time.monotonic() - begun

    async def leave(self) -> None:
        """Release whatever a part that failed has left."""
        for one in list(self.wanted.values()):
            await self.release(one)

    def check(self, words: str, holds: bool) -> None:
        """Note one fact that was to be shown."""
        self.checks.append(f"{'ok  ' if holds else 'FAIL'}  {words}")
        print(self.checks[-1], flush=True)


async def cycles(bench: Bench, name: str, kinds: list[str], gib: float, count: int) -> Row:
    """Suspend and resume a claim with these programs so often; compare with an undisturbed run."""
    limit_gib = len(kinds) * (gib + 2)
    held = await bench.claim(limit_gib, core=50)
    free = bench.used_mib()
    programs = [Program(bench.stage, held, kind, gib) for kind in kinds]
    for program in programs:
        await program.goes_on(5)
    before = bench.used_mib()
    largest = await programs[0].probe() if not bench.simulated else 0
    out, back, meanwhile, saved = [], [], [], 0
    for _ in range(count):
        seconds, saved = await bench.suspend(held)
        out.append(seconds)
        meanwhile.append(bench.used_mib())
        await asyncio.sleep(AWAY_SECONDS)
        back.append(await bench.resume(held))
        for program in programs:
            await program.goes_on()
    after = bench.used_mib()
    again = await programs[0].probe() if not bench.simulated else 0
    bench.check(
        f"{name}: {count} cycles, and every program goes on", all(one.process.poll() is None for one in programs)
    )
    bench.check(
        f"{name}: NVML has at most {max(meanwhile)} MiB in use meanwhile ({free} before)", max(meanwhile) <= free + 8
    )
    bench.check(f"{name}: the largest further allocation was {largest} MiB and is {again}", largest == again)
    made = [(program.kind, program.steps) for program in programs]
    await bench.release(held)
    if not bench.simulated:
        await compare(bench, name, made, gib)
    return {
        "programs": name, "cycles": count, "saved MiB": saved >> 20, "in use MiB": before,
        "meanwhile MiB": max(meanwhile), "after MiB": after,
        "out s": statistics.median(out), "out most s": max(out),
        "back s": statistics.median(back), "back most s": max(back),
    }  # fmt: skip


async def compare(bench: Bench, name: str, made: list[tuple[str, dict[int, str]]], gib: float) -> None:
    """Run the same program undisturbed, and compare the lines that both have."""
    kind, steps = made[0][0], max(len(lines) for _, lines in made)
    held = await bench.claim(gib + 2)
    program, end = Program(bench.stage, held, kind, gib), time.monotonic() + 60
    while len(program.steps) < steps and time.monotonic() < end:  # noqa: ASYNC110
        await asyncio.sleep(0.1)
    for at, (_, lines) in enumerate(made):
        common = set(program.steps) & set(lines)
        differ = [step for step in common if program.steps[step] != lines[step]]
        words = f"{name}, program {at}: losses and checksums of {len(common)} steps equal an undisturbed run's"
        bench.check(words, len(common) > 10 and not differ)
    await bench.release(held)


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


async def run(options: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory(prefix="gpucloud-bench-", dir="/dev/shm") as directory:
        control = Control()
        await control.start()
        bench = Bench(Path(directory), control, simulated=options.simulated)
        rows = []
        try:
            await bench.start()
            for part in options.parts.split(","):
                try:
                    rows += await measure(bench, part, options)
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


async def measure(bench: Bench, part: str, options: argparse.Namespace) -> list[Row]:
    """Run one part; return its rows."""
    large = 20 if not options.simulated else 8
    print(f"{time.strftime('%H:%M:%S')} {part}", flush=True)
    if part == "lend":
        await lend(bench, large, 62 if not options.simulated else 17)
        return []
    if part == "kills":
        await kills(bench, large)
        return []
    kinds, gib, count = {
        "small": (["plain"], 2, options.cycles),
        "several": (["plain"] * 3, 2, options.cycles),
        "graph": (["graph"], 2, options.cycles),
        "loader": (["loader"], 2, options.cycles),
        "large": (["plain"], large, options.large_cycles),
    }[part]
    return [await cycles(bench, f"{part}: {len(kinds)} x {gib} GiB", kinds, gib, count)]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--cycles", type=int, default=10)
    parser.add_argument("--large-cycles", type=int, default=3)
    parser.add_argument("--parts", default="small,several,graph,loader,large,lend,kills")
    parser.add_argument("--simulated", action="store_true")
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
