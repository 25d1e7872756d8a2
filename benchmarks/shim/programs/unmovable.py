"""A program whose memory the driver cannot move, until it is told to free or close it.

    python unmovable.py KIND GIB STEPS

KIND: `managed` (CUDA's managed memory), `ipc` (a tensor of another process, by torch.multiprocessing) or `mps` (plain
memory; the environment names an MPS server). It prints a line a step. At a line of standard input it frees or closes
the memory, and says `largest 0`.
"""

import ctypes
import gc
import os
import sys
import threading
import time
from typing import Any

import torch

KIND, GIB = sys.argv[1], float(sys.argv[2])
STEP_SECONDS = 0.02


def make(given: Any, done: Any) -> None:
    """Give a tensor to the parent, and keep it until the parent is done."""
    tensor = torch.full((1 << 20,), 7.0, device="cuda")
    given.put(tensor)
    done.wait()


def wait_for_word(told: threading.Event) -> None:
    """Take one line of standard input."""
    os.read(0, 1)
    told.set()


def main() -> None:
    """Hold the memory, work, and let it go when told."""
    work, told = torch.zeros(1 << 20, device="cuda"), threading.Event()
    threading.Thread(target=wait_for_word, args=(told,), daemon=True).start()
    cuda, block, held = ctypes.CDLL("libcuda.so.1"), ctypes.c_uint64(), list[Any]()
    # The process that gave its memory, and how it is let go.
    makers = list[Any]()
    if KIND == "managed":
        assert not cuda.cuMemAllocManaged(ctypes.byref(block), ctypes.c_size_t(int(GIB * (1 << 30))), 1)
    elif KIND == "ipc":
        context = torch.multiprocessing.get_context("spawn")
        given, done = context.Queue(), context.Event()
        makers = [context.Process(target=make, args=(given, done)), done]
        makers[0].start()
        held.append(given.get())
    for at in range(1 << 30):
        work += 1
        time.sleep(STEP_SECONDS)
        assert not held or held[0][at % 1000].item() == 7.0
        print("step", at, work[0].item(), flush=True)
        if told.is_set():
            told.clear()
            if KIND == "managed":
                assert not cuda.cuMemFree_v2(block)
            elif KIND == "ipc":
                held.clear()
                gc.collect()
                torch.cuda.ipc_collect()
                makers[1].set()
                makers[0].join()
            print("largest 0", flush=True)


if __name__ == "__main__":
    main()
