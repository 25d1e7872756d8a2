"""Memory that steps aside, measured on a GPU of one's own: `python -m benchmarks.lending`.

Two claims share the GPU under the real arbiter, one that borrows and one that owns what it borrows; a third program
fills the rest. Printed, one JSON object a line:

- `give`: the owner allocates 1, 10 and 40 GiB that are lent; how long its allocation takes, beside the bound of 100 ms
  and one second for 20 GiB; how long the borrower stood still; how long it takes until everything is back; whether
  every word of the borrower's memory is what was written.
- `two`: the same beside two borrowers, of which the owner wants more than one has.
- `deaths`: borrower, owner and arbiter are killed while memory is out or wanted; whether the next call is granted,
  whether every word is right, and whether anything stays in the books.
- `training`: a small transformer trains as the borrower while owners come and go; its losses beside those of the same
  training alone, how many steps a second it makes, and what was out when the owner called.

It needs PyTorch, a GPU with nothing else on it, and host memory for what is lent. `--gib 1 10` chooses the sizes.
"""

import argparse
import ctypes
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO, Any

from benchmarks.lending_programs import BORROWER, OWNER, TRAINING

GIB = 1 << 30
BUILD = Path(__file__).parent.parent / "libvcuda" / "build"


class Lending(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_uint64) for name in ("movable", "out", "host", "moved_out", "moved_in", "stood_ns", "wanted")
    ]


class Node:
    """A directory of claims on the machine's first GPU, and an arbiter."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        query = ["nvidia-smi", "--query-gpu=uuid,name,driver_version,memory.total", "--format=csv,noheader"]
        self.about = subprocess.check_output(query, text=True).splitlines()[0]
        self.gpu = self.about.split(",")[0]
        self._pages = ctypes.CDLL(str(BUILD / "libvcuda-pages.so"))
        self._usage: dict[str, ctypes.c_void_p] = {}
        self.start_arbiter()

    def start_arbiter(self) -> None:
        self._arbiter = subprocess.Popen([BUILD / "vcuda-arbiter", str(self.directory)])

    def claim(self, name: str, memory: int, *options: str) -> None:
        subprocess.run([BUILD / "pagectl", self.directory / name, "create"], check=True)
        subprocess.run([BUILD / "pagectl", self.directory / name, "set", self.gpu, str(memory), *options], check=True)
        page = ctypes.c_void_p()
        assert self._pages.vcuda_usage_create(os.fsencode(self.directory / name / "usage"), ctypes.byref(page)) >= 0
        self._usage[name] = page

    def lending(self, name: str) -> Lending:
        found = Lending()
        self._pages.vcuda_usage_lending(self._usage[name], 0, ctypes.byref(found))
        return found

    def start(self, name: str | None, program: str, *arguments: object) -> subprocess.Popen[str]:
        environment = {**os.environ, "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
        if name:
            environment |= {
                "LD_PRELOAD": str(BUILD / "libvcuda.so"),
                "GPUCLOUD_CLAIM_DIR": str(self.directory / name),
            }
        return subprocess.Popen(
            [sys.executable, "-c", program, *map(str, arguments)],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def clear(self, name: str) -> None:
        """Clear the slots of dead processes, as the agent does."""
        assert self._pages.vcuda_usage_reap_dead(self._usage[name]) >= 0

    def kill_arbiter(self) -> None:
        self._arbiter.kill()
        self._arbiter.wait()

    def end(self) -> None:
        self._arbiter.terminate()
        self._arbiter.wait()


def pipe(stream: IO[str] | None) -> IO[str]:
    assert stream is not None
    return stream


def await_word(program: subprocess.Popen[str], word: str) -> list[str]:
    """Return the words after this one, on the first line that begins with it."""
    for line in pipe(program.stdout):
        if line.startswith(f"{word} ") or line.strip() == word:
            return line.split()[1:]
    raise RuntimeError(f"{program.args!r:.60} ended with {program.wait()} before it said {word}")


def tell(program: subprocess.Popen[str], line: str) -> None:
    pipe(program.stdin).write(line + "\n")
    pipe(program.stdin).flush()


def report(**figures: Any) -> None:
    print(json.dumps(figures), flush=True)


def wait_until_back(node: Node, seconds: float, *names: str) -> float | None:
    begin = time.monotonic()
    while (
        out := sum(node.lending(name).out for name in names or ("borrower",))
    ) and time.monotonic() - begin < seconds:
        time.sleep(0.002)
    return None if out else time.monotonic() - begin


def bound_ms(size: int) -> float:
    return round(100 + size / (20 * GIB) * 1e3, 1)


def count_wrong(*borrowers: subprocess.Popen[str]) -> int:
    for borrower in borrowers:
        tell(borrower, "check")
    return sum(int(await_word(borrower, "wrong")[0]) for borrower in borrowers)


def fill_up(node: Node, leave: int) -> subprocess.Popen[str]:
    """Take all that is free on the GPU but so much; outside of any claim, which would be shown what is lent as free."""
    filler = node.start(None, OWNER)
    free = int(await_word(filler, "free")[0])
    tell(filler, f"take {max(free - leave, 2 << 20)}")
    assert await_word(filler, "took")[1] == "0"
    return filler


def finish(*programs: subprocess.Popen[str]) -> None:
    for program in programs:
        pipe(program.stdin).close()
        program.kill()
        program.wait()


def give(node: Node, gib: int, times: int) -> None:
    # Two more than are asked for: what is promised to the borrower does not leave.
    borrower = node.start("borrower", BORROWER, gib + 2)
    pinned = float(await_word(borrower, "took")[0])
    owner = node.start("owner", OWNER)
    await_word(owner, "free")
    filler = fill_up(node, 512 << 20)
    for _ in range(times):
        before = node.lending("borrower")
        size = gib * GIB
        tell(owner, f"take {size}")
        took, error = await_word(owner, "took")
        after = node.lending("borrower")
        tell(borrower, "check")
        out_wrong = await_word(borrower, "wrong")
        tell(owner, "free")
        await_word(owner, "took")
        back = wait_until_back(node, 30)
        done = node.lending("borrower")
        tell(borrower, "check")
        wrong = await_word(borrower, "wrong")
        report(
            part="give",
            gib=gib,
            asked_bytes=size,
            error=int(error),
            took_ms=round(float(took) * 1e3, 1),
            bound_ms=bound_ms(size),
            moved_gib=round((after.moved_out - before.moved_out) / GIB, 2),
            stood_out_ms=round((after.stood_ns - before.stood_ns) / 1e6, 1),
            back_s=back and round(back, 2),
            stood_back_ms=round((done.stood_ns - after.stood_ns) / 1e6, 1),
            wrong_while_out=int(out_wrong[0]),
            slowest_steps_s=[round(float(out_wrong[2]), 3), round(float(wrong[2]), 3)],
            wrong=int(wrong[0]),
            borrowed_in_s=round(pinned, 2),
        )
    finish(borrower, owner, filler)


def take(owner: subprocess.Popen[str], size: int) -> tuple[float, int]:
    """Return how long the owner's call took, ms, and its error."""
    tell(owner, f"take {size}")
    took, error = await_word(owner, "took")
    return round(float(took) * 1e3, 1), int(error)


def give_two(node: Node, gib: int, times: int) -> None:
    names = ("borrower", "second")
    borrowers = [node.start(name, BORROWER, gib + 2) for name in names]
    for borrower in borrowers:
        await_word(borrower, "took")
    owner = node.start("owner", OWNER)
    await_word(owner, "free")
    filler = fill_up(node, 512 << 20)
    size = gib * 3 // 2 * GIB
    for _ in range(times):
        before = [node.lending(name).moved_out for name in names]
        took, error = take(owner, size)
        moved = [node.lending(name).moved_out - one for name, one in zip(names, before, strict=True)]
        wrong = count_wrong(*borrowers)
        tell(owner, "free")
        await_word(owner, "took")
        back = wait_until_back(node, 30, *names)
        report(
            part="two", asked_gib=size // GIB, error=error, took_ms=took, bound_ms=bound_ms(size),
            moved_gib=[round(one / GIB, 2) for one in moved], back_s=back and round(back, 2), wrong_while_out=wrong,
            wrong=count_wrong(*borrowers),
        )  # fmt: skip
    finish(*borrowers, owner, filler)


def die(node: Node, gib: int) -> None:
    size = gib * GIB
    borrower = node.start("borrower", BORROWER, gib + 2)
    await_word(borrower, "took")
    owner = node.start("owner", OWNER)
    await_word(owner, "free")
    filler = fill_up(node, 512 << 20)
    # The owner, while it waits: 20 ms after its call, in which 10 GiB do not leave.
    tell(owner, f"take {size}")
    time.sleep(0.02)
    owner.kill()
    owner.wait()
    node.clear("owner")
    left = node.lending("owner")
    back = wait_until_back(node, 30)
    report(
        part="deaths", killed="owner", back_s=back and round(back, 2), wrong=count_wrong(borrower), wanted=left.wanted
    )
    # The arbiter, likewise; its successor begins half a second later.
    owner = node.start("owner", OWNER)
    await_word(owner, "free")
    tell(owner, f"take {size}")
    time.sleep(0.02)
    node.kill_arbiter()
    time.sleep(0.5)
    node.start_arbiter()
    took, error = await_word(owner, "took")
    report(
        part="deaths",
        killed="arbiter",
        took_ms=round(float(took) * 1e3, 1),
        error=int(error),
        wrong=count_wrong(borrower),
    )
    kill_borrower(node, borrower, owner, size)
    finish(owner, filler)


def kill_borrower(node: Node, borrower: subprocess.Popen[str], owner: subprocess.Popen[str], size: int) -> None:
    """Kill the borrower while memory of it is out."""
    out = node.lending("borrower").out
    borrower.kill()
    borrower.wait()
    node.clear("borrower")
    left = node.lending("borrower")
    tell(owner, "free")
    await_word(owner, "took")
    took_ms, refused = take(owner, size)
    report(
        part="deaths", killed="borrower", out_gib=round(out / GIB, 2), left_bytes=left.movable + left.out + left.host,
        took_ms=took_ms, error=refused,
    )  # fmt: skip


def train(node: Node, steps: int, gib: int) -> None:
    results = {}
    for name in (None, "borrower"):
        training = node.start(name, TRAINING, steps, gib)
        await_word(training, "ready")
        owners, latencies, out = list[subprocess.Popen[str]](), list[float](), list[float]()
        if name:
            owners = [node.start("owner", OWNER)]
            await_word(owners[0], "free")
            owners.append(fill_up(node, 512 << 20))
        tell(training, "go")
        losses, rest = list[str](), list[str]()
        for line in pipe(training.stdout):
            word, *rest = line.split()
            if word == "seconds":
                results[name] = (losses, rest)
                break
            losses.append(rest[0])
            if owners and len(losses) % 100 == 20:
                out.append(round(node.lending("borrower").out / GIB, 2))
                took_ms, error = take(owners[0], gib // 2 * GIB)
                assert error == 0, error
                latencies.append(took_ms)
            if owners and len(losses) % 100 == 45:
                tell(owners[0], "free")
                await_word(owners[0], "took")
        finish(training, *owners)
        report(
            part="training", borrows=bool(name), steps=len(losses), seconds=rest[0], median_step_s=rest[1],
            slowest_step_s=rest[2], owner_ms=latencies, out_gib=out,
            moved_gib=round(node.lending("borrower").moved_out / GIB, 1),
        )  # fmt: skip
    report(part="training", same_losses=results[None][0] == results["borrower"][0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gib", type=int, nargs="*", default=[1, 10, 40], help="what the owner takes, GiB")
    parser.add_argument("--times", type=int, default=3, help="how often it takes each")
    parser.add_argument("--two", type=int, default=12, help="what each of two borrowers lends, GiB; 0: not")
    parser.add_argument("--deaths", type=int, default=10, help="what is out when somebody dies, GiB; 0: nobody does")
    parser.add_argument("--steps", type=int, default=400, help="steps of the training; 0: none")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        node = Node(Path(directory))
        report(part="about", gpu=node.about)
        node.claim("borrower", 130 * GIB, "0-100", "best-effort", "borrows=2GiB", "host=60GiB")
        node.claim("second", 130 * GIB, "0-100", "best-effort", "borrows=2GiB", "host=30GiB")
        node.claim("owner", 60 * GIB, "50-100")
        time.sleep(0.5)
        try:
            for gib in options.gib:
                give(node, gib, options.times)
            if options.two:
                give_two(node, options.two, options.times)
            if options.deaths:
                die(node, options.deaths)
            if options.steps:
                train(node, options.steps, 8)
        finally:
            node.end()


if __name__ == "__main__":
    main()
