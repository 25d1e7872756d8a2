"""A training loop whose every step can be compared with that of another run: losses and checksums, to the bit.

    python suspended.py KIND GIB STEPS

KIND: `plain`, `graph` (the step is a CUDA graph) or `loader` (batches from two worker processes, pinned). A block of
GIB is counted up in each step, and its checksum, of every byte and its place, is part of the line. On each line of
standard input it says the largest allocation that it can have, in MiB, after it emptied PyTorch's cache.
"""

import faulthandler
import os
import signal
import sys
import threading
import time
from typing import Any

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch

KIND, GIB, STEPS = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
STEP_SECONDS = 0.02
# Numbers of a row of the block (64 KiB): a row that came back at another place changes the checksum.
ROW = 8192
# For a program that hangs: where all its threads are.
faulthandler.register(signal.SIGUSR1, all_threads=True)
probes = threading.Semaphore(0)


class Batches(torch.utils.data.Dataset):  # type: ignore[misc]
    """Batches that follow from their number."""

    def __len__(self) -> int:
        return STEPS

    def __getitem__(self, at: int) -> Any:
        made = torch.Generator().manual_seed(at)
        return torch.randn(64, 512, generator=made)


def main() -> None:
    """Train, and print one line a step."""
    torch.manual_seed(7)
    torch.use_deterministic_algorithms(True)
    block = torch.empty((int(GIB * (1 << 27)) // ROW, ROW), device="cuda", dtype=torch.int64)
    for begin in range(0, len(block), ROW):
        part = block[begin : begin + ROW]
        torch.arange(begin * ROW, begin * ROW + part.numel(), out=part.view(-1))
    places = torch.arange(1, len(block) + 1, device="cuda")
    model = torch.nn.Sequential(torch.nn.Linear(512, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 512)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batch = torch.zeros(64, 512, device="cuda")
    loss = torch.zeros((), device="cuda")

    def work() -> None:
        optimizer.zero_grad(set_to_none=False)
        found = (model(batch) - batch).square().mean()
        found.backward()
        optimizer.step()
        loss.copy_(found.detach())
        block.add_(1)

    step = captured(work) if KIND == "graph" else work
    workers = 2 if KIND == "loader" else 0
    batches = torch.utils.data.DataLoader(Batches(), batch_size=None, num_workers=workers, pin_memory=bool(workers))
    threading.Thread(target=listen, daemon=True).start()
    for at, values in enumerate(batches):
        batch.copy_(values, non_blocking=True)
        step()
        time.sleep(STEP_SECONDS)
        memory = (block.sum(1) * places).sum().item()
        parameters = sum(p.double().sum().item() for p in model.parameters())
        print("step", at, loss.item().hex(), memory, parameters.hex(), flush=True)
        if probes.acquire(blocking=False):
            print("largest", largest_mib(), flush=True)


def captured(work: Any) -> Any:
    """Return the replay of a step as a CUDA graph."""
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph.replay


def listen() -> None:
    """Let each line of standard input ask for a probe."""
    # Not `sys.stdin`: a forked worker closes that, and would wait for this thread's lock on it.
    while os.read(0, 1):
        probes.release()


def largest_mib() -> int:
    """Return the largest allocation that succeeds, in MiB, to the MiB."""
    torch.cuda.empty_cache()
    least, most = 0, 200 << 10
    while most - least > 1:
        middle = (least + most) // 2
        try:
            torch.empty(middle << 20, dtype=torch.uint8, device="cuda")
            least = middle
        except torch.OutOfMemoryError:
            most = middle
        torch.cuda.empty_cache()
    return least


main()
