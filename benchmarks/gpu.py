"""`make bench-gpu`: a claim, its live resizes and its release, with a CUDA program on this machine's first GPU.

The whole platform runs as `make demo` starts it, so this measures real GPUs where NVML finds any, and the simulated
driver elsewhere (the table says which). One `gpuload` runs under one claim all the time; only the limit moves.

    share       gpuload's own reckoning: kernels of known duration per wall time, means of whole seconds
    rate share  its kernels a second against the same program with the whole GPU, in this run
    in force    from the PATCH being sent to libvcuda's echo in the running process
    memory      the largest allocation under a limit of 4 GiB, and the error of a larger one
"""

import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.echo import Echo
from benchmarks.report import Row, print_report
from tests.platform import ROOT, Platform, until

GPULOAD = str(ROOT / "libvcuda" / "build" / "gpuload")
LIMITS = (100, 25, 50, 75, 100)
SETTLE_SECONDS, WINDOW_SECONDS = 2.0, 10.0
MEMORY_MIB = 4096


def main() -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory(prefix="gpucloud-bench-") as directory:
        print("starting the platform …", flush=True)
        with Platform(Path(directory) / "demo", programs=True) as platform:
            platform.new_tenant("bench")
            gpu = platform.granted("GET", "gpus/?pool=default")["results"][-1]
            node = platform.granted("GET", f"nodes/{gpu['node']}/")
            print(f"{gpu['model']}, driver {node['driver_version']}, simulated: {node['simulated']}", flush=True)
            rows = [
                *shares(platform, Path(directory), "flood"),
                *shares(platform, Path(directory), "launch+sync", "--sync"),
            ]
            print_report("gpu", rows, [memory(platform, Path(directory))])


def shares(platform: Platform, directory: Path, style: str, *options: str) -> list[Row]:
    """Measure shares; return a row per limit."""
    body = {"tenant": "bench", "name": style, "core_request": 100, "memory_mib": MEMORY_MIB}
    claim = platform.granted("POST", "claims/?wait=60", body)
    path = f"claims/{claim['uid']}/"
    log = directory / f"{style}.log"
    options = ("--json", "--kernel-us", "1000", *options)
    program = platform.run(claim["uid"], GPULOAD, *options, log=log)
    run_dir = Path(platform.granted("GET", f"{path}env/")["agent_socket"]).parent
    try:
        until(lambda: lines(log), seconds=60, what="the program's first second")
        echo = Echo(run_dir, claim["uid"])
        measured = [_at_limit(platform, path, echo, log, limit) for limit in LIMITS]
    finally:
        freed = platform.granted("DELETE", f"{path}?wait=40")
        program.wait(30)
    assert freed["state"] == "released"
    whole = statistics.mean(row["kernels/s"] for row in measured if row["limit"] == 100)
    return [{"style": style, **row, "rate share": 100 * row["kernels/s"] / whole} for row in measured]


def _at_limit(platform: Platform, path: str, echo: Echo, log: Path, limit: int) -> Row:
    sent = time.perf_counter()
    resized = platform.granted("PATCH", path, {"core_request": limit, "core_limit": limit})
    in_force = echo.wait(resized["generation"], seconds=15) - sent
    time.sleep(SETTLE_SECONDS)
    before, began, seen = echo.gpu_time_ns(), time.perf_counter(), len(lines(log))
    time.sleep(WINDOW_SECONDS)
    charged = (echo.gpu_time_ns() - before) / (time.perf_counter() - began) / 1e7
    window = lines(log)[seen:]
    seconds = [line["share_percent"] for line in window]
    kernels = (window[-1]["kernels"] - window[0]["kernels"]) / (window[-1]["seconds"] - window[0]["seconds"])
    return {
        "limit": limit,
        "share": statistics.mean(seconds),
        "sd over 1 s": statistics.stdev(seconds),
        "charged": charged,
        "kernels/s": kernels,
        "in force ms": in_force * 1000,
    }


def memory(platform: Platform, directory: Path) -> Row:
    """Measure the largest block, to the MiB, that a program can allocate under the limit, and one MiB more."""
    body = {"tenant": "bench", "name": "memory", "core_request": 50, "memory_mib": MEMORY_MIB}
    claim = platform.granted("POST", "claims/?wait=60", body)
    fits, refused, words = 0, MEMORY_MIB + 1, ""
    while refused - fits > 1:
        mib = (fits + refused) // 2
        answer = _refusal(platform, claim["uid"], mib, directory / "memory.log")
        fits, refused, words = (fits, mib, answer) if answer else (mib, refused, words)
    platform.granted("DELETE", f"claims/{claim['uid']}/?wait=40")
    return {"limit MiB": MEMORY_MIB, "allocated MiB": fits, "context MiB": MEMORY_MIB - fits, "one more": words}


def _refusal(platform: Platform, claim: str, mib: int, log: Path) -> str:
    """Return the program's message when the allocation fails; empty if it succeeds."""
    options = ("--kernel-us", "0", "--memory", f"{mib}MiB", "--seconds", "0.1")
    platform.run(claim, GPULOAD, *options, log=log).wait(60)
    return next((word for word in log.read_text().split() if word.startswith("CUDA_ERROR")), "")


def lines(log: Path) -> list[dict[str, Any]]:
    """Return the program's whole seconds so far."""
    return [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{") and line.endswith("}")]


if __name__ == "__main__":
    main()
