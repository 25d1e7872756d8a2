"""Memory that steps aside, measured on a GPU of one's own: `python -m benchmarks.lending`.

Two claims share the GPU under the real arbiter, one that borrows and one that owns what it borrows; a third program
fills the rest. Printed, one JSON object a line:

- `give`: the owner allocates 1, 10 and 40 GiB that are lent; how long its allocation takes, beside the bound of 100 ms
  and one second for 20 GiB; how long the borrower stood still; how long it takes until everything is back; whether
  every word of the borrower's memory is what was written.
- `training`: a small transformer trains as the borrower while owners come and go; its losses beside those of the same
  training alone, and how many steps a second it makes.

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

GIB = 1 << 30
BUILD = Path(__file__).parent.parent / "libvcuda" / "build"

BORROWER = """
import sys, time, torch
torch.backends.cuda.matmul.allow_tf32 = False
gib = float(sys.argv[1])
blocks, n = [], int(min(gib, 1) * (1 << 30)) // 4
begin = time.monotonic()
for i in range(max(1, int(gib))):
    blocks.append(torch.empty(n, dtype=torch.int32, device="cuda"))
part = 1 << 22
def words(i, at):
    return torch.arange(at, at + part, dtype=torch.int32, device="cuda") * (2 * i + 1)
def count_wrong():
    wrong = torch.zeros((), dtype=torch.int64, device="cuda")
    for i, block in enumerate(blocks):
        for at in range(0, n, part):
            wrong += (block[at : at + part] != words(i, at)).sum()
    return int(wrong)
for i, block in enumerate(blocks):
    for at in range(0, n, part):
        block[at : at + part] = words(i, at)
assert count_wrong() == 0
print("took", time.monotonic() - begin, flush=True)
a = torch.randn(1024, 1024, device="cuda")
import os; os.set_blocking(0, False)
steps, slowest, last = 0, 0.0, time.monotonic()
while True:
    (a @ a).sum(); steps += 1
    if steps % 20 == 0:
        torch.cuda.synchronize()
        now = time.monotonic(); slowest = max(slowest, now - last); last = now
    if steps % 200 == 0:
        line = sys.stdin.readline()
        if line.startswith("check"):
            print("wrong", count_wrong(), "slowest", slowest, flush=True)
            slowest, last = 0.0, time.monotonic()
        if line.startswith("end"):
            break
"""

TRAINING = """
import sys, time, torch
torch.manual_seed(7)
torch.use_deterministic_algorithms(True)
steps, gib = int(sys.argv[1]), float(sys.argv[2])
layer = torch.nn.TransformerEncoderLayer(1024, 16, 4096, dropout=0.0, batch_first=True)
model = torch.nn.TransformerEncoder(layer, 8, enable_nested_tensor=False).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
more = [torch.zeros(1 << 28, dtype=torch.int32, device="cuda") for _ in range(int(gib))]
data = torch.randn(16, 16, 256, 1024, generator=torch.Generator().manual_seed(3)).cuda()
for step in range(3):
    model(data[0]).square().mean().backward(); optimizer.zero_grad()
torch.cuda.synchronize(); print("ready", flush=True); sys.stdin.readline()
begin = time.monotonic(); times = []
for step in range(steps):
    at = time.monotonic()
    loss = (model(data[step % 16]) - data[(step + 1) % 16]).square().mean()
    loss.backward(); optimizer.step(); optimizer.zero_grad()
    print("loss", loss.item().hex(), flush=True); times.append(time.monotonic() - at)
for m in more: assert int(m.sum()) == 0
times.sort()
print("seconds", time.monotonic() - begin, times[len(times) // 2], times[-1], flush=True)
"""

OWNER = """
import ctypes, sys, time
cuda = ctypes.CDLL("libcuda.so.1")
context, device, at = ctypes.c_void_p(), ctypes.c_int(), ctypes.c_uint64()
free, total = ctypes.c_size_t(), ctypes.c_size_t()
assert cuda.cuInit(0) == 0 and cuda.cuDeviceGet(ctypes.byref(device), 0) == 0
error = cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
print("context", error, flush=True)
assert cuda.cuCtxSetCurrent(context) == 0
cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
print("free", free.value, flush=True)
for line in sys.stdin:
    verb, _, size = line.partition(" ")
    begin = time.monotonic()
    if verb == "take":
        error = cuda.cuMemAlloc_v2(ctypes.byref(at), ctypes.c_size_t(int(size)))
    else:
        error = cuda.cuMemFree_v2(at)
    print("took", time.monotonic() - begin, error, flush=True)
"""


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
        self._arbiter = subprocess.Popen([BUILD / "vcuda-arbiter", str(directory)])

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


def wait_until_back(node: Node, seconds: float) -> float | None:
    begin = time.monotonic()
    while node.lending("borrower").out and time.monotonic() - begin < seconds:
        time.sleep(0.002)
    return None if node.lending("borrower").out else time.monotonic() - begin


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
            bound_ms=round(100 + size / (20 * GIB) * 1e3, 1),
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


def train(node: Node, steps: int, gib: int) -> None:
    results = {}
    for name in (None, "borrower"):
        training = node.start(name, TRAINING, steps, gib)
        await_word(training, "ready")
        owners, latencies = list[subprocess.Popen[str]](), list[float]()
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
                tell(owners[0], f"take {gib // 2 * GIB}")
                took, error = await_word(owners[0], "took")
                assert error == "0", error
                latencies.append(round(float(took) * 1e3, 1))
            if owners and len(losses) % 100 == 45:
                tell(owners[0], "free")
                await_word(owners[0], "took")
        finish(training, *owners)
        report(
            part="training", borrows=bool(name), steps=len(losses), seconds=rest[0], median_step_s=rest[1],
            slowest_step_s=rest[2], owner_ms=latencies, moved_gib=round(node.lending("borrower").moved_out / GIB, 1)
        )  # fmt: skip
    report(part="training", same_losses=results[None][0] == results["borrower"][0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gib", type=int, nargs="*", default=[1, 10, 40], help="what the owner takes, GiB")
    parser.add_argument("--times", type=int, default=3, help="how often it takes each")
    parser.add_argument("--steps", type=int, default=400, help="steps of the training; 0: none")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        node = Node(Path(directory))
        report(part="about", gpu=node.about)
        node.claim("borrower", 130 * GIB, "0-100", "best-effort", "borrows=2GiB", "host=60GiB")
        node.claim("owner", 60 * GIB, "50-100")
        time.sleep(0.5)
        try:
            for gib in options.gib:
                give(node, gib, options.times)
            if options.steps:
                train(node, options.steps, 8)
        finally:
            node.end()


if __name__ == "__main__":
    main()
