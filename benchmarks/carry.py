"""Running programs that are carried between two agents of this machine, each in namespaces of its own.

    python -m benchmarks.carry [--simulated] [--train] [GIB...]

A program keeps so many GiB of GPU memory, of which each MiB has a pattern of its own, changes them one by one
and compares them. It is carried to the other agent; both agents are killed once in the middle. On a real GPU both
have the same cards. With --train, PyTorch trains instead (benchmarks/shim/programs/suspended.py), and each line of it
is compared with an undisturbed run of the same seed; where there are two GPUs, it is also carried to the other one.

    out      from the desired state that wants it away to `suspended`: the driver's checkpoint, CRIU's dump, transfer
    back     from the desired state that wants it in force to `in_force`: CRIU's restore, the driver's restore; with the
             old agent killed, from the beginning until it is in force there again
"""

import argparse
import asyncio
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from agent import wire
from benchmarks.report import Row, print_report
from tests.agent.carrying import Site, find_lack
from tests.agent.control import Connection, Control
from tests.agent.stage import GIB, ROOT
from tests.agent.test_reconcile import changed

TRAINING = str(ROOT / "benchmarks" / "shim" / "programs" / "suspended.py")
STEPS = 1_000_000
PROGRAM = """
import ctypes, os, sys, time
out = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
blocks, holds = int(float(sys.argv[2]) * 1024), sys.argv[3] == "True"
cuda = ctypes.CDLL("libcuda.so.1")
def must(error, what):
    if error:
        os.write(out, f"error {what} {error}\\n".encode())
        sys.exit(1)
context, memory, host = ctypes.c_void_p(), ctypes.c_uint64(), ctypes.create_string_buffer(1 << 20)
must(cuda.cuInit(0), "init")
must(cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0), "context")
must(cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(blocks << 20)), "allocation")
def write(block, value):
    at = ctypes.c_uint64(memory.value + (block << 20))
    must(cuda.cuMemsetD8_v2(at, ctypes.c_ubyte(value), ctypes.c_size_t(1 << 20)), "memset")
def check(block, value):
    at = ctypes.c_uint64(memory.value + (block << 20))
    must(cuda.cuMemcpyDtoH_v2(host, at, ctypes.c_size_t(1 << 20)), "copy")
    if holds and host.raw != bytes([value]) * (1 << 20):
        must(1, f"pattern of {block}")
values = [(7 * block + 3) % 251 for block in range(blocks)]
for block, value in enumerate(values):
    write(block, value)
step, last = 0, time.monotonic()
while True:
    for block in range(0, blocks, 16):
        check(block, values[block])
        values[block] = (values[block] + 1) % 251
        write(block, values[block])
        now = time.monotonic()
        must(now < last, "clock")
        last, step = now, step + 1
        os.write(out, f"step {step}\\n".encode())
        time.sleep(0.002)
    for block, value in enumerate(values):
        check(block, value)
    os.write(out, b"whole\\n")
"""


class Bench:
    """Two sites, and a program that goes from the one to the other."""

    def __init__(self, root: Path, *, simulated: bool, trains: bool) -> None:
        self.root, self.simulated, self.trains = root, simulated, trains
        self.sites: list[Site] = []
        self.links: list[Connection] = []
        self.controls: list[Control] = []
        self.frame = 0

    async def start(self) -> None:
        """Start both agents."""
        paths = (self.root / "run", self.root / "node")
        paths[0].mkdir()
        paths[1].touch()
        for name in ("old", "new"):
            control = Control()
            await control.start()
            (self.root / f"{name}-run").mkdir()
            site = Site(self.root / name, self.root / f"{name}-run", control, paths)
            site.simulated = self.simulated
            self.sites.append(site)
            self.controls.append(control)
            await site.open()
            self.links.append(await self.begin(site))

    async def begin(self, site: Site) -> Connection:
        """Start the site's agent."""
        return await site.begin(GPUCLOUD_SUSPEND_MEMORY_MIB=str(80 << 10))

    async def send(self, at: int, *assignments: wire.Assignment) -> None:
        """Let one of the agents have these assignments."""
        self.frame += 1
        await self.links[at].send(wire.Desired(frame=self.frame, assignments=list(assignments)))

    async def close(self) -> None:
        """End everything."""
        for site in self.sites:
            site.close()
        for control in self.controls:
            await control.stop()


def read(out: Path) -> list[str]:
    """Return the program's lines. Raises AssertionError if it found an error."""
    lines = out.read_text().splitlines() if out.exists() else []
    assert not any(line.startswith(("error", "Traceback")) for line in lines), lines[-1]
    return lines


def steps_of(out: Path) -> dict[int, str]:
    """Return what a training printed of each step."""
    rows = (line.split(maxsplit=2) for line in read(out) if line.startswith("step ") and line.count(" ") == 4)
    return {int(number): words for _, number, words in rows}


async def goes_on(bench: Bench, out: Path, *, seconds: float = 120) -> None:
    """Wait until the program has compared all of its memory twice, so once from its beginning, or made steps."""

    def count() -> int:
        return len(steps_of(out)) // 5 if bench.trains else read(out).count("whole")

    before, end = count(), time.monotonic() + seconds
    while count() < before + 2:
        assert time.monotonic() < end, f"it makes no steps: {read(out)[-3:]}"
        await asyncio.sleep(0.1)


async def prepare(
    bench: Bench, gib: float, out: Path, gpu: int
) -> tuple[wire.Assignment, wire.Assignment, wire.Ticket]:
    """Start a program of this size on the old node's first GPU, and have this one of the new node wait for it."""
    old, new = bench.sites
    held = changed(old.assignment(), memory_bytes=int((gib + 4) * GIB), core_request=0, core_limit=100)
    await bench.send(0, held)
    await bench.links[0].state(held.uid, "in_force", 1)
    if bench.trains:
        await old.launch_command(held.claim_uid, training(gib), output=str(out))
    else:
        await old.launch(held.claim_uid, PROGRAM, str(out), str(gib), str(not bench.simulated))
    await goes_on(bench, out)
    there = changed(
        held, uid=new.assignment().uid, gpu_uuid=new.gpus[gpu], suspended=True, generation=2, carry=wire.Carry()
    )
    await bench.send(1, there)
    ticket = (await bench.links[1].state(there.uid, "suspended", 2)).ticket
    assert isinstance(ticket, wire.Ticket)
    return held, there, ticket


def training(gib: float) -> list[str]:
    """Return the command of a training with a block of this size."""
    return [sys.executable, TRAINING, "plain", str(gib), str(STEPS)]


async def compare(out: Path, gib: float) -> int:
    """Compare the training's lines with an undisturbed run's; return their number."""
    there, undisturbed = steps_of(out), out.with_name(f"{out.name}-undisturbed")
    with undisturbed.open("wb") as output:
        other = subprocess.Popen(  # noqa: ASYNC220 - it starts at once
            training(gib), stdout=output, stdin=subprocess.DEVNULL, cwd=ROOT
        )
    try:
        end = time.monotonic() + 120
        while len(steps_of(undisturbed)) < len(there):
            assert time.monotonic() < end, f"the undisturbed run is at step {len(steps_of(undisturbed))}"
            await asyncio.sleep(0.1)
    finally:
        other.kill()
        other.wait()
    right = steps_of(undisturbed)
    differ = sorted(number for number, words in there.items() if words != right[number])
    assert not differ, f"step {differ[0]} is {there[differ[0]]} and undisturbed {right[differ[0]]}"
    return len(there)


async def go_back(bench: Bench, held: wire.Assignment, gib: float) -> None:
    """Kill the old agent while it sends, and let the program go on there."""
    await asyncio.sleep(0.5 + gib / 8)
    await bench.sites[0].kill()
    bench.links[0] = await bench.begin(bench.sites[0])
    await bench.send(0, changed(held, generation=9))
    await bench.links[0].state(held.uid, "in_force", 9)


async def arrive(bench: Bench, there: wire.Assignment, gib: float, kill: str) -> None:
    """Let the program go on on the new node, whose agent may be killed meanwhile."""
    arriving = changed(there, suspended=False, generation=4)
    await bench.send(1, arriving)
    if kill == "new":
        await asyncio.sleep(0.5 + gib / 8)
        await bench.sites[1].kill()
        bench.links[1] = await bench.begin(bench.sites[1])
        await bench.send(1, arriving)
    await wait(bench.links[1], there.uid, "in_force", 4)


async def carry(bench: Bench, gib: float, kill: str = "", gpu: int = 0) -> Row:
    """Carry a program of this size to this GPU of the new node; `kill`: which agent is killed on the way."""
    out = bench.root / f"out-{gib:g}-{kill}-{gpu}"
    held, there, ticket = await prepare(bench, gib, out, gpu)
    begun = left = time.monotonic()
    await bench.send(0, changed(held, suspended=True, generation=3, carry=wire.Carry(ticket=ticket)))
    if kill == "old":
        await go_back(bench, held, gib)
    else:
        await wait(bench.links[0], held.uid, "suspended", 3)
        left = time.monotonic()
        await arrive(bench, there, gib, kill)
    arrived = time.monotonic()
    await bench.send(1 if kill == "old" else 0)
    await goes_on(bench, out)
    for at, link in enumerate(bench.links):
        await bench.send(at)
        await asyncio.sleep(2)
        link.forget()
    equal = {"equal steps": await compare(out, gib)} if bench.trains else {}
    return {"GiB": gib, "killed": kill, "to GPU": gpu, "out s": left - begun, "back s": arrived - left, **equal}


async def wait(link: Connection, uid: str, state: str, generation: int) -> None:
    """Wait until the assignment is in this state. Raises AssertionError if the agent refuses."""

    def holds(frame: wire.Observed) -> bool:
        for one in frame.assignments:
            refused = one.uid == uid and one.generation == generation and isinstance(one.suspend_refused, str)
            assert not refused, one.suspend_refused
        return any(one.uid == uid and one.state == state and one.generation == generation for one in frame.assignments)

    await link.expect(wire.Observed, holds, seconds=240)


def trips(bench: Bench, sizes: list[float]) -> list[tuple[float, str, int]]:
    """Return the size, the agent that is killed and the GPU of each carry."""
    if bench.trains:
        return [(size, "", gpu) for size in sizes for gpu in range(min(2, len(bench.sites[1].gpus)))]
    killed = [(sizes[0], "", 0), (sizes[0], "new", 0), (sizes[0], "old", 0)]
    return [*killed, *((size, "", 0) for size in sizes[1:])]


async def run(sizes: list[float], *, simulated: bool, trains: bool) -> list[Row]:
    """Return the rows of all sizes; both agents are killed once, with the first size."""
    root = Path(tempfile.mkdtemp(prefix="gpucloud-carry-"))
    bench, rows = Bench(root, simulated=simulated, trains=trains), list[Row]()
    try:
        await bench.start()
        for trip in trips(bench, sizes):
            rows.append(await carry(bench, *trip))
            print(rows[-1], flush=True)
    finally:
        for site in bench.sites:
            print(site.log_text()[-3000:], flush=True)
        await bench.close()
        shutil.rmtree(root, ignore_errors=True)
    return rows


def main() -> None:
    """Run the benchmark and print its figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--simulated", action="store_true", help="on the simulated driver")
    parser.add_argument("--train", action="store_true", help="carry trainings of PyTorch")
    parser.add_argument("sizes", nargs="*", type=float, default=[2.0], metavar="GIB")
    options = parser.parse_args()
    if (words := find_lack()) is not None:
        raise SystemExit(f"Nothing can be carried here: it {words}.")
    rows = asyncio.run(run(options.sizes or [2.0], simulated=options.simulated, trains=options.train))
    print_report("carry", rows)


if __name__ == "__main__":
    main()
