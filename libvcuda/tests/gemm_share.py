"""A PyTorch matrix product in a loop: its share of GPU time, counted by the profiler from the kernels' own times.

Usage: gemm_share.py SIZE SECONDS [stream|sync]. Prints one JSON object. Timing events around a throttled launch would
count the waiting as well, so the kernels' durations are what is summed, independently of the library under test.
"""

import json
import sys
import time

import torch
from torch.profiler import ProfilerActivity, profile


def main() -> None:
    size, seconds = int(sys.argv[1]), float(sys.argv[2])
    sync = len(sys.argv) > 3 and sys.argv[3] == "sync"
    a = torch.randn(size, size, device="cuda", dtype=torch.bfloat16)
    b = torch.randn(size, size, device="cuda", dtype=torch.bfloat16)
    for _ in range(20):
        c = a @ b
    torch.cuda.synchronize()

    def loop(until: float) -> int:
        marks: list[torch.cuda.Event] = []
        done = 0
        while time.perf_counter() < until:
            torch.matmul(a, b, out=c)
            done += 1
            if sync:
                torch.cuda.synchronize()
                continue
            event = torch.cuda.Event()
            event.record()
            marks.append(event)
            if len(marks) > 32:
                marks.pop(0).synchronize()
        torch.cuda.synchronize()
        return done

    loop(time.perf_counter() + 1.0)
    with profile(activities=[ProfilerActivity.CUDA]) as trace:
        begin = time.perf_counter()
        done = loop(begin + seconds)
        wall = time.perf_counter() - begin
    events = [e for e in trace.events() if e.device_type.name == "CUDA"]
    spans = sorted((e.time_range.start, e.time_range.end) for e in events)
    busy = sum(end - start for start, end in spans) / 1e6
    print(json.dumps({"size": size, "sync": sync, "products": done, "wall": round(wall, 3), "kernels": len(spans),
                      "share_percent": round(100 * busy / wall, 2)}))


main()
