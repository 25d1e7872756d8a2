"""Claims that do not fit together share this machine's GPU by time, on a whole platform.

    python -m benchmarks.rotate_platform [--claims 3] [--gib 36] [--slice 60] [--kill] [--simulated]

`benchmarks.rotate` measures the same with the agent alone. Here everything is what an operator has: the platform as
`make demo` starts it, its pool `default` with `oversubscribe`, claims by the API, programs by `agent exec`
(benchmarks/shim/programs/suspended.py, from the same seed). It needs root, one GPU, and free host memory for all
claims.
The run ends when each claim was in once and the first one is in again. With --kill, the worker, the scheduler, the
server and the agent are killed by SIGKILL one after the other, in the middle of slices. Then the rotation is switched
off: each claim resumes once more, its program makes steps, and it is released. The lines of all programs must be equal.

    in       seconds in force, without the slice that has just begun
    served   GPU-seconds by the platform's books, which begin with a claim's first swap
    swap     by the timelines: from a claim's `suspending` to the next claim's `active`
    host     the most host memory in use, beside what was in use before the first claim

With --simulated, `gpuload` runs on a simulated GPU instead: whether the script works.
"""

import argparse
import http.client
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

from agent.settings import available_mib
from benchmarks.report import print_report
from tests.claims import GPULOAD, Claims
from tests.platform import ROOT, Platform, until

PROGRAM = ROOT / "benchmarks" / "shim" / "programs" / "suspended.py"
SIMNODE = ROOT / "libvcuda" / "build" / "simnode"
GIB = 1024
# PyTorch's context, and what it keeps beside the block.
CONTEXT_MIB = 2 * GIB
# Of the machine's free memory, for everything else.
SPARE_MIB = 8 * GIB
STEPS = 100_000
# A slice of the largest claims lasts ten minutes.
PATIENCE = 1500.0
PARTS = ("worker", "scheduler", "server", "agent")


class Member:
    """A claim of the rotation, and its program."""

    def __init__(self, claims: Claims, name: str, options: argparse.Namespace) -> None:
        self.claims, self.options = claims, options
        mib = int(options.gib * GIB + CONTEXT_MIB)
        self.uid = claims.ask(wait=0, name=name, core_request=100, memory_mib=mib)["uid"]
        self.log = claims.directory / f"{name}.log"
        self.program: subprocess.Popen[bytes] | None = None
        self.claim: dict[str, Any] = {}
        self.served = 0
        self.last_words = ""

    def read(self) -> bool:
        """Read the claim; return True while it is in. Start its program when it comes in for the first time."""
        try:
            self.claim = self.claims.read(self.uid)
        except (OSError, http.client.HTTPException):
            # The server was killed, and starts again.
            return False
        if self.claim["rotation"]:
            self.served = self.claim["rotation"]["served_gpu_seconds"] or self.served
        self.print_change()
        inside = bool(self.claim["state"] == "active")
        if inside and self.program is None:
            command = [sys.executable, str(PROGRAM), "plain", str(self.options.gib), str(STEPS)]
            if self.options.simulated:
                command = [GPULOAD, "--memory", "1GiB", "--interval", "0.1"]
            self.program = self.claims.platform.run(self.uid, *command, log=self.log)
            self.claims.programs.append(self.program)
        return inside

    def print_change(self) -> None:
        """Print the claim's state and reasons if they changed, as runs may be cut short."""
        words = " ".join([self.claim["state"], *(one["detail"] for one in self.claim["reasons"])])
        if words != self.last_words:
            print(f"{time.strftime('%H:%M:%S')} {self.log.stem}: {words}", flush=True)
        self.last_words = words

    def steps(self) -> dict[str, str]:
        """Return the program's lines by their steps."""
        lines = (line.split(maxsplit=2) for line in self.log.read_text().splitlines()) if self.log.exists() else ()
        if self.options.simulated:
            return {str(at): "" for at, _ in enumerate(lines)}
        return {words[1]: words[2] for words in lines if len(words) == 3 and words[0] == "step"}

    def states(self) -> list[tuple[str, float]]:
        """Return the states of the claim and when they began, in seconds of the epoch."""
        return [(one["state"], datetime.fromisoformat(one["at"]).timestamp()) for one in self.claim["timeline"]]

    def slices(self) -> list[float]:
        """Return how long each slice was that is over."""
        return [after[1] - before[1] for before, after in pairwise(self.states()) if before[0] == "active"]

    def times_in(self) -> int:
        return sum(state == "active" for state, _ in self.states())


class Rotation:
    """The claims of one GPU, and what was measured of them."""

    def __init__(self, claims: Claims, options: argparse.Namespace) -> None:
        self.claims, self.options, self.failures = claims, options, list[str]()
        self.free_mib = self.least_free_mib = available_mib()
        self.killed: list[str] = []
        self.members = [Member(claims, f"rotates-{number}", options) for number in range(options.claims)]
        self.over = threading.Event()
        threading.Thread(target=self.watch, daemon=True).start()

    def watch(self) -> None:
        """Note the least host memory that is free."""
        while not self.over.wait(0.5):
            self.least_free_mib = min(self.least_free_mib, available_mib())

    def run(self) -> None:
        """Let each claim be in once, and the first one twice."""
        inside: Member | None = None
        end = time.monotonic() + PATIENCE * self.options.claims
        while not (all(one.program for one in self.members) and max(one.times_in() for one in self.members) > 1):
            assert time.monotonic() < end, "the claims do not rotate"
            now = next((one for one in self.members if one.read()), None)
            if now is not None and now is not inside:
                inside = now
                self.wait_for_steps(now)
                self.kill()
            time.sleep(1)
        self.over.set()

    def wait_for_steps(self, one: Member) -> None:
        """Wait until the claim's program makes steps."""
        before = len(one.steps())
        until(lambda: len(one.steps()) > before + 2, seconds=180, what=f"steps of {one.log.name}", longest_pause=1)

    def kill(self) -> None:
        """Kill the next part of the platform, if that was asked for."""
        if not self.options.kill or len(self.killed) == len(PARTS):
            return
        part = PARTS[len(self.killed)]
        self.claims.platform.kill(f"agent-{self.options.node}" if part == "agent" else part)
        self.killed.append(part)
        if part == "server":
            until(self.serves, seconds=90, what="the server to be back", longest_pause=1)
        print(f"{time.strftime('%H:%M:%S')} killed: {part}", flush=True)

    def serves(self) -> bool:
        """Return True if the server answers."""
        try:
            return self.claims.platform.call("GET", "pools/default/").status == http.HTTPStatus.OK
        except (OSError, http.client.HTTPException):
            return False

    def swaps(self) -> list[float]:
        """Return how long nobody was in, each time a claim went out for another one."""
        out = sorted(at for one in self.members for state, at in one.states() if state == "suspending")
        into = sorted(at for one in self.members for state, at in one.states() if state == "active")
        found = [next((at for at in into if at > begun), None) for begun in out]
        return [at - begun for begun, at in zip(out, found, strict=True) if at is not None]

    def report(self) -> None:
        """Print what each claim had, and what the swaps cost."""
        swaps, slices = self.swaps(), [seconds for one in self.members for seconds in one.slices()]
        begun = min(at for one in self.members for state, at in one.states() if state == "active")
        seconds = max(at for one in self.members for state, at in one.states() if state == "active") - begun
        rows = [
            {
                "claim": number,
                "times in": one.times_in(),
                "in s": sum(one.slices()),
                "served s": one.served,
                "steps": len(one.steps()),
            }
            for number, one in enumerate(self.members)
        ]
        whole = [
            {
                "minutes": seconds / 60,
                "swaps": len(swaps),
                "swap s": statistics.median(swaps),
                "slice s": statistics.median(slices),
                "swap %": 100 * sum(swaps) / seconds,
                "host GiB": (self.free_mib - self.least_free_mib) / GIB,
            }
        ]
        print("swaps", *(f"{one:.1f}" for one in swaps), "slices", *(f"{one:.1f}" for one in slices))
        print_report("rotate_platform", rows, whole)
        served = [one.served for one in self.members]
        self.check(f"swaps take {100 * sum(swaps) / seconds:.1f} % of the time, at most 10", sum(swaps) <= seconds / 10)
        self.check("served times differ by a slice at most", max(served) - min(served) <= max(slices) + 5)
        if self.options.kill:
            self.check(f"killed meanwhile: {', '.join(self.killed)}", bool(self.killed))

    def end(self) -> None:
        """Let each claim resume, make steps and end; compare the lines."""
        platform = self.claims.platform
        platform.granted("PATCH", "pools/default/", {"oversubscribe": None})
        left = list(self.members)
        while left:
            inside = until(lambda: next((one for one in left if one.read()), None), seconds=300, what="a resumption")
            self.wait_for_steps(inside)
            assert inside.program is not None
            self.check(f"claim {self.members.index(inside)} goes on", inside.program.poll() is None)
            inside.program.kill()
            platform.granted("DELETE", f"claims/{inside.uid}/?wait=60")
            left.remove(inside)
        lines = [one.steps() for one in self.members]
        common = set.intersection(*map(set, lines))
        differ = [step for step in common if len({one[step] for one in lines}) > 1]
        self.check(f"losses and checksums of {len(common)} common steps are equal", len(common) > 10 and not differ)
        node = platform.granted("GET", f"nodes/{self.options.node}/")
        self.check("no host memory is charged in the end", node["host_memory_used_mib"] == 0)
        self.check("no quota is charged in the end", set(platform.used(self.claims.tenant).values()) == {0})

    def check(self, words: str, holds: bool) -> None:
        """Print one fact that was to be shown."""
        print(f"{'ok  ' if holds else 'FAIL'}  {words}", flush=True)
        self.failures += [] if holds else [words]


def run(options: argparse.Namespace, directory: Path) -> int:
    """Start the platform, rotate, compare; return the exit code."""
    state = directory / "demo"
    environment = {} if options.simulated else {"GPUCLOUD_SUSPEND_MEMORY_MIB": str(available_mib() - SPARE_MIB)}
    if options.simulated:
        node = state / "nodes" / "sim-1"
        for made in (state, node.parent, node):
            made.mkdir(mode=0o700)
        create = [str(SIMNODE), "create", str(node / "node.sim"), "--name", "sim-1", "--gpus", "1", "--memory", "80GiB"]
        subprocess.run(create, check=True, capture_output=True)
    with Platform(state, environment=environment) as platform:
        gpus = until(lambda: platform.granted("GET", "gpus/?pool=default")["results"], what="the agent's GPU")
        if len(gpus) > 1:
            sys.exit(f"this machine has {len(gpus)} GPUs; run it on one with a single GPU")
        options.node = gpus[0]["node"]
        settings = {"oversubscribe": min(8, max(2, options.claims)), "slice_seconds": options.slice}
        platform.granted("PATCH", "pools/default/", settings)
        claims = Claims(platform, directory)
        claims.tenant = platform.new_tenant("rotates", core=100 * options.claims, memory_mib=1 << 20)
        rotation = Rotation(claims, options)
        try:
            rotation.run()
            rotation.report()
            rotation.end()
        except BaseException:
            for log in sorted((state / "logs").glob("*")):
                print(f"--- {log.name}", log.read_text(errors="replace")[-3000:], sep="\n", file=sys.stderr)
            raise
        finally:
            claims.end()
    return 1 if rotation.failures else 0


def main() -> None:
    """Rotate and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--claims", type=int, default=3)
    parser.add_argument("--gib", type=float, default=36)
    parser.add_argument("--slice", type=int, default=60)
    parser.add_argument("--kill", action="store_true")
    parser.add_argument("--simulated", action="store_true")
    options = parser.parse_args()
    if os.geteuid() and not options.simulated:
        sys.exit("run it as root: the agent suspends programs of other users only then")
    with tempfile.TemporaryDirectory(prefix="gpucloud-bench-") as directory:
        sys.exit(run(options, Path(directory)))


if __name__ == "__main__":
    main()
