"""PyTorch at its memory limit: fills it, reports what it got, how it failed, and what NVML says. Prints one JSON object."""

import json
import subprocess
import os
import sys

import torch


def used_by_nvml() -> int:
    """MiB of this process by NVML, asked from a process that is not preloaded; -1 where it is not listed."""
    clean = {k: v for k, v in os.environ.items() if k not in ("LD_PRELOAD", "GPUCLOUD_CLAIM_DIR")}
    query = ["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"]
    lines = subprocess.run(query, env=clean, capture_output=True, text=True).stdout.splitlines()
    pairs = [line.split(",") for line in lines if "," in line]
    mine = [int(mib) for pid, mib in pairs if int(pid) == os.getpid()]
    return mine[0] if mine else (int(pairs[0][1]) if len(pairs) == 1 else -1)


def main() -> None:
    step = int(sys.argv[1]) << 20
    free, total = torch.cuda.mem_get_info()
    blocks, error = [], "none"
    try:
        for _ in range(100000):
            blocks.append(torch.empty(step, dtype=torch.uint8, device="cuda"))
    except torch.OutOfMemoryError as caught:
        error = "torch.OutOfMemoryError"
        message = str(caught).splitlines()[0][:200]
    after, _ = torch.cuda.mem_get_info()
    held = len(blocks) * step
    nvml = used_by_nvml()
    del blocks
    torch.cuda.empty_cache()
    again = torch.empty(step, dtype=torch.uint8, device="cuda")
    again.fill_(1)
    torch.cuda.synchronize()
    print(json.dumps({"step_mib": step >> 20, "total_mib": total >> 20, "free_mib": free >> 20, "held_mib": held >> 20,
                      "free_after_mib": after >> 20, "nvml_mib": nvml, "error": error, "message": message}))


main()
