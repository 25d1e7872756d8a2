"""Claims that do not fit together share this machine's first GPU by time: the agent itself, PyTorch, the real core.

    python -m benchmarks.rotate [--claims 3] [--gib 60] [--slice 60] [--minutes 10] [--measure-first] [--simulated]

An agent runs as root beside a stand-in for the server, as in `benchmarks.suspend`. Who goes out and who comes in, and
when, `rotation.planning` decides, as in the control plane; no database is needed. Programs train meanwhile
(benchmarks/shim/programs/suspended.py) from the same seed, and are put out at different steps: their lines must be
equal. Each claim asks for a whole GPU, so that one is in at a time, whatever its size. The machine needs free memory
for all of them, as the one that goes out leaves before the other one comes back; a slice lasts ten times as long as a
swap at least. With --measure-first, each claim goes out once before the time begins: slices then follow from what that
took, as they do once claims have rotated, and not from estimates. When the time is over, each claim that was out
comes back once more, which is not counted: so the memory of each is compared after its last swap.

    served   the time in which a claim was in force, in seconds of the GPU
    steps    steps of its program
    out      from the desired state being sent to `suspended` being received
    back     from the desired state being sent to `in_force` being received
    swap     of the measured time: the GPU was on the way from one claim to another one
    host     the most host memory in use, beside what was in use before

With --simulated, `gpuload` runs on the simulated driver instead (24 GiB; try `--gib 18`): whether the script works.
"""

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from agent import wire
from agent.settings import available_mib
from apps.suspension.rotation.planning import Member, Rules, Scene, SharedGpu, plan
from benchmarks.report import print_report
from benchmarks.suspend.machine import CONTEXT_MIB, MIB, Bench, Program
from tests.agent.control import Control

GPU, NODE = "gpu", "node"
# Of the machine's free memory, for everything else.
SPARE_MIB = 8 << 10
# A program with 60 GiB has filled it by then.
START_SECONDS = 180


@dataclass(slots=True)
class Part:
    """A claim in the rotation, with its program and what was measured of it."""

    held: wire.Assignment
    program: Program | None = None
    inside: bool = False
    since: float = 0.0
    # What it began with in the account, which it did not have.
    begun_with: float = 0.0
    served: float = 0.0
    out: list[float] = field(default_factory=list)
    back: list[float] = field(default_factory=list)
    # Of `out`, so many were before the time began.
    times_before: int = 0

    def member(self, now: float) -> Member:
        """Return the claim as the core takes it."""
        return Member(
            self.held.uid,
            self.held.core_request,
            self.held.memory_bytes // MIB,
            gpus=(GPU,) if self.program is not None else (),
            allowed=frozenset({GPU}),
            served=self.served_until(now) if self.program is not None else None,
            since=self.since,
            draws=(NODE,),
            out_seconds=self.out[-1] if self.out else None,
            # A claim that was never in has nothing to bring back.
            in_seconds=self.back[-1] if self.back else None if self.program is not None else 0.0,
        )

    def served_until(self, now: float) -> float:
        return self.served + (now - self.since if self.inside else 0.0)


class Rotation:
    """One GPU whose claims take part."""

    def __init__(self, bench: Bench, options: argparse.Namespace, card_mib: int, host_mib: int) -> None:
        self.bench, self.options = bench, options
        self.rules = Rules(options.claims, options.slice)
        self.card_mib, self.host_mib = card_mib, host_mib
        self.parts: list[Part] = []
        self.swaps: list[float] = []
        self.lengths: list[float] = []
        self.free_mib = self.least_free_mib = available_mib()

    async def run(self) -> None:
        """Let the claims rotate for the given time."""
        gib = self.options.gib
        for _ in range(self.options.claims):
            held = self.bench.stage.assignment(
                memory_bytes=int((gib * 1024 + 2 * CONTEXT_MIB) * MIB), core_request=100, core_limit=100
            )
            self.parts.append(Part(held, since=time.monotonic()))
        watch = asyncio.create_task(self.watch())
        await (self.measure_first() if self.options.measure_first else self.enter(self.parts[0]))
        begun = time.monotonic()
        while time.monotonic() < begun + self.options.minutes * 60:
            now = time.monotonic()
            swaps = plan(self.rules, self.scene(now))
            if not swaps:
                raise RuntimeError("nobody can come in: is there host memory for those that are out?")
            if swaps[0].at > now:
                await asyncio.sleep(min(0.2, swaps[0].at - now))
                continue
            await self.swap(swaps[0].out, swaps[0].into)
        self.ended = time.monotonic()
        self.seconds = self.ended - begun
        watch.cancel()

    async def measure_first(self) -> None:
        """Start each program, and let it go out and come back once; the first one stays."""
        for one in self.parts:
            await self.enter(one)
            one.out.append((await self.bench.suspend(one.held))[0])
            one.inside, one.since = False, time.monotonic()
        for one in (*self.parts[1:], self.parts[0]):
            one.back.append(await self.bench.resume(one.held))
            assert one.program is not None
            await one.program.goes_on(1)
            if one is not self.parts[0]:
                one.out.append((await self.bench.suspend(one.held))[0])
            one.inside, one.since = one is self.parts[0], time.monotonic()
            self.print_swap("measured", one)
        for one in self.parts:
            one.served = one.begun_with = 0.0
            one.times_before = len(one.out)

    async def watch(self) -> None:
        """Note the least host memory that is free."""
        while True:
            self.least_free_mib = min(self.least_free_mib, available_mib())
            await asyncio.sleep(0.5)

    async def come_back(self) -> None:
        """Let each claim that is out come back once more, and make steps."""
        for one in [one for one in self.parts if one.program is not None and not one.inside]:
            for other in self.parts:
                if other.inside:
                    other.out.append((await self.bench.suspend(other.held))[0])
                    other.inside = False
            one.back.append(await self.bench.resume(one.held))
            one.inside = True
            assert one.program is not None
            await one.program.goes_on()
            self.print_swap("afterwards", one)

    def print_swap(self, word: str, one: Part) -> None:
        """Print what is known of a claim's last swap, as runs may be cut short."""
        out, back = (f"{values[-1]:.1f}" if values else "–" for values in (one.out, one.back))
        last = f"claim {self.parts.index(one)} is in; its last out {out} s, back {back} s"
        print(f"{time.strftime('%H:%M:%S')} {word}: {last}", flush=True)

    def scene(self, now: float) -> Scene:
        """Return the GPU as it is."""
        inside = [one.member(now) for one in self.parts if one.inside]
        waiting = [one.member(now) for one in self.parts if not one.inside]
        there = [*inside, *(one for one in waiting if one.gpus)]
        gpu = SharedGpu(
            GPU,
            NODE,
            self.card_mib,
            100 - sum(one.core for one in inside),
            self.card_mib - sum(one.memory_mib for one in inside),
            sum(one.core for one in there),
            sum(one.memory_mib for one in there),
        )
        out = sum(one.memory_mib for one in waiting if one.gpus)
        return Scene([gpu], inside, waiting, {NODE: self.host_mib - out}, now)

    async def swap(self, out: tuple[str, ...], into: str) -> None:
        """Put these claims out, and let the other one in."""
        by_uid = {one.held.uid: one for one in self.parts}
        begun = time.monotonic()
        for uid in out:
            one = by_uid[uid]
            one.served, one.inside = one.served_until(begun), False
            self.lengths.append(begun - one.since)
            seconds, _ = await self.bench.suspend(one.held)
            one.out.append(seconds)
            one.since = time.monotonic()
        left = time.monotonic()
        if by_uid[into].program is None:
            # It is new: its program begins, which is no part of the swap.
            self.swaps.append(left - begun)
            await self.enter(by_uid[into])
            self.print_swap(f"first time, after {self.swaps[-1]:.1f} s", by_uid[into])
            return
        by_uid[into].back.append(await self.bench.resume(by_uid[into].held))
        by_uid[into].inside, by_uid[into].since = True, time.monotonic()
        self.swaps.append(time.monotonic() - begun)
        self.print_swap(f"swap of {self.swaps[-1]:.1f} s", by_uid[into])
        program = by_uid[into].program
        assert program is not None
        await program.goes_on()

    async def enter(self, one: Part) -> None:
        """Put a new claim in force, and start its program; it begins with the least that others were served."""
        self.bench.wanted[one.held.uid] = one.held
        await self.bench.state(one.held.uid, "in_force", await self.bench.want(one.held.uid))
        one.served = min((other.served for other in self.parts if other.program is not None), default=0.0)
        one.begun_with = one.served
        one.program = Program(self.bench.stage, one.held, "plain", self.options.gib)
        await one.program.goes_on(5, seconds=START_SECONDS)
        one.inside, one.since = True, time.monotonic()

    def report(self) -> None:
        """Print what each claim had, and what the swaps cost."""
        now = self.ended
        rows = [
            {
                "claim": number,
                "served s": one.served_until(now) - one.begun_with,
                "GPU-hours": (one.served_until(now) - one.begun_with) / 3600,
                "steps": len(one.program.steps) if one.program is not None else 0,
                "times out": len(one.out) - one.times_before,
                "out s": statistics.median(one.out) if one.out else 0.0,
                "back s": statistics.median(one.back) if one.back else 0.0,
            }
            for number, one in enumerate(self.parts)
        ]
        cost = sum(self.swaps)
        whole = [
            {
                "minutes": self.seconds / 60,
                "swaps": len(self.swaps),
                "swap s": statistics.median(self.swaps) if self.swaps else 0.0,
                "slice s": statistics.median(self.lengths) if self.lengths else 0.0,
                "swap %": 100 * cost / self.seconds,
                "host GiB": (self.free_mib - self.least_free_mib) / 1024,
                "served %": 100 * sum(one.served_until(now) - one.begun_with for one in self.parts) / self.seconds,
            }
        ]
        print_report("rotate", rows, whole)
        served = [one.served_until(now) for one in self.parts]
        # The slice that ran at the end is not over.
        longest = max([*self.lengths, *(now - one.since for one in self.parts if one.inside)])
        bench = self.bench
        bench.check(
            "every program goes on", all(one.program and one.program.process.poll() is None for one in self.parts)
        )
        bench.check(
            f"served times differ by at most a slice of {longest:.0f} s", max(served) - min(served) <= longest + 5
        )
        bench.check(f"swaps take {100 * cost / self.seconds:.1f} % of the time, at most 10", cost <= 0.1 * self.seconds)

    def compare(self) -> None:
        """Compare the lines of the programs with each other."""
        lines = [one.program.steps for one in self.parts if one.program is not None]
        common = set.intersection(*map(set, lines))
        differ = [step for step in common if len({one[step] for one in lines}) > 1]
        words = f"losses and checksums of {len(common)} steps are equal in all programs"
        self.bench.check(words, len(common) > 10 and not differ)

    async def leave(self) -> None:
        """End the programs and their claims."""
        for one in self.parts:
            if one.program is not None:
                one.program.end()
        await self.bench.leave()


async def run(options: argparse.Namespace) -> None:
    """Start the agent, rotate, compare."""
    with tempfile.TemporaryDirectory(prefix="gpucloud-bench-", dir="/dev/shm") as directory:
        control = Control()
        await control.start()
        bench = Bench(Path(directory), control, simulated=options.simulated)
        try:
            # The simulated driver saves nothing.
            host_mib = 1 << 20 if options.simulated else available_mib() - SPARE_MIB
            await bench.start(host_memory_mib=host_mib)
            rotation = Rotation(bench, options, bench.card_mib, host_mib)
            await rotation.run()
            rotation.report()
            await rotation.come_back()
            if not options.simulated:
                rotation.compare()
            await rotation.leave()
        finally:
            print("\n".join(bench.checks), flush=True)
            print(bench.stage.log_text()[-4000:], file=sys.stderr, flush=True)
            bench.stage.close()
            await control.stop()


def main() -> None:
    """Rotate and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--claims", type=int, default=3)
    parser.add_argument("--gib", type=float, default=60)
    parser.add_argument("--slice", type=float, default=60)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--measure-first", action="store_true")
    parser.add_argument("--simulated", action="store_true")
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
