"""PyTorch at its memory limit: fill it, print how that failed, hold until a line is read, free, and continue.

Prints {"event": "full", …} and, after the line, {"event": "freed", …}. Sizes in MiB.
"""

import argparse
import sys

import torch

from benchmarks.shim.programs.loop import say

MIB = 1 << 20
MOST_BLOCKS = 100_000


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    arguments.add_argument("--step", type=int, default=64, help="MiB a tensor (64)")
    arguments.add_argument("--most", type=int, default=1 << 20, help="MiB at most")
    options = arguments.parse_args()
    free, total = torch.cuda.mem_get_info()
    blocks, error, message = fill(options.step * MIB, options.most // options.step)
    left, _ = torch.cuda.mem_get_info()
    say({
        "event": "full", "total_mib": total // MIB, "free_mib": free // MIB, "held_mib": len(blocks) * options.step,
        "free_after_mib": left // MIB, "error": error, "message": message,
    })  # fmt: skip
    sys.stdin.readline()
    blocks.clear()
    torch.cuda.empty_cache()
    again = torch.ones(options.step * MIB // 4, device="cuda")
    say({"event": "freed", "sum_is_right": float(again.double().sum()) == options.step * MIB // 4})


def fill(size: int, most: int) -> tuple[list[torch.Tensor], str, str]:
    """Return the allocated blocks, and the error's type and first line."""
    blocks: list[torch.Tensor] = []
    try:
        while len(blocks) < min(most, MOST_BLOCKS):
            blocks.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
    except torch.OutOfMemoryError as caught:
        return blocks, "torch.OutOfMemoryError", str(caught).splitlines()[0][:200]
    except RuntimeError as caught:
        return blocks, type(caught).__name__, str(caught).splitlines()[0][:200]
    return blocks, "none", ""


if __name__ == "__main__":
    main()
