"""Cost of the library to whole programs while no limit is in force (GaiaGPU's first experiment; published 1.015 %).

Two processes of one program differ by some percent, by where their memory lies and on which processors they run. So the
library's work is turned off and on within one process (``libvcuda/tests/switch.c``). A program that allocates frees
all its memory before each turn, since what was charged must not be freed unseen.
"""

import math
import os
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.shim.drive import SPARE_SECONDS, Ran, wait_for_imports, warm
from benchmarks.shim.part import Part
from benchmarks.shim.processes import Process
from benchmarks.shim.report import Report
from benchmarks.shim.sampling import Spread
from benchmarks.shim.stage import BUILD, Stage

# Two processes: the placement of a process's memory makes a difference of its own.
PROCESSES = 2
# Short windows, as the host's other load lasts longer than they do.
WITHIN_SECONDS, WINDOW_SECONDS = 6.0, 0.05
# A window of churn begins without any memory, and must be long beside the time until it has its usual amount.
CHURN_SECONDS, CHURN_WINDOW_SECONDS = 16.0, 0.2
# All on the same few processors: some are faster than others for as long as their neighbours rest.
PROCESSORS = 4
PROGRAMS: Mapping[str, tuple[str, ...]] = {
    "small CNN (training)": ("cnn", "--model", "small"),
    "large CNN (training, as ResNet-50)": ("cnn", "--model", "large"),
    "transformer decode, CUDA graphs": ("decode",),
    "GEMM 8192³": ("gemm", "--size", "8192"),
    "two kernels and a wait (512³)": ("wait", "--size", "512"),
}
# Of these the GPU has always enough to do.
GPU_BOUND = frozenset({"transformer decode, CUDA graphs", "GEMM 8192³"})
ASYNC = {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync", "PYTORCH_ALLOC_CONF": "backend:cudaMallocAsync"}
CHURN: Mapping[str, Mapping[str, str]] = {"default allocator": {}, "cudaMallocAsync": ASYNC}
Row = dict[str, float | int | str | None]


@dataclass(frozen=True)
class Pair:
    """One window without the library's work, and the next one with it."""

    bare: Ran
    claimed: Ran


def measure(stage: Stage, report: Report) -> None:
    claim = stage.claim(100)
    switch = {"BENCH_SWITCH": str(BUILD / "tests" / "libswitch.so")}
    programs = {
        name: [stage.program(claim, *how, more=switch) for _ in range(PROCESSES)]
        for name, how in PROGRAMS.items()
        if stage.is_chosen(name.partition(" (")[0].replace(",", ""))
    }
    churns = {
        name: [stage.program(claim, "churn", more={**switch, **more}) for _ in range(PROCESSES)]
        for name, more in CHURN.items()
        if stage.is_chosen("churn")
    }
    everyone = [one for each in (*programs.values(), *churns.values()) for one in each]
    for process in everyone:  # before PyTorch makes threads, which inherit the setting
        os.sched_setaffinity(process.pid, sorted(os.sched_getaffinity(0))[-PROCESSORS:])
    wait_for_imports(everyone)
    rows: list[Row] = []
    means: list[float] = []
    for name, processes in programs.items():
        pairs = compare(stage, processes, WITHIN_SECONDS, WINDOW_SECONDS)
        rows.append(row(report, name, pairs))
        means.append(statistics.median(pair.bare.rate / pair.claimed.rate for pair in pairs))
    report.table(
        "Iterations a second of one process, the library's work at launches and waits off and on in turn; "
        "overhead = off / on − 1, one pair after the other",
        rows,
    )
    if means:
        mean = 100 * (math.exp(statistics.mean(math.log(value) for value in means)) - 1)
        report.note(f"Geometric mean of the overheads (medians): {mean:+.3f} % (GaiaGPU published 1.015 %).")
        report.raw("geometric mean, percent", mean)
    churned = [
        row(report, f"allocation churn, {name}", compare(stage, processes, CHURN_SECONDS, CHURN_WINDOW_SECONDS))
        for name, processes in churns.items()
    ]
    report.table("Allocation churn in PyTorch, in the same way: ratio of the rates, on / off (target 0.99)", churned)


def compare(stage: Stage, processes: Sequence[Process], seconds: float, window: float) -> list[Pair]:
    """Return pairs of windows of each process: the library's work off, and on."""
    found: list[Pair] = []
    for process in processes:
        warm(process)
        length = seconds / (8 if stage.quick else 1)
        process.say(f"alternate {length} {window}")
        # What a program does between two windows is not in their lengths.
        pairs = process.wait("alternated", 2 * length + SPARE_SECONDS)["pairs"]
        found += [Pair(*(Ran(1 / pair[name][0], pair[name][1]) for name in ("off", "on"))) for pair in pairs]
        process.terminate()
    return found


def row(report: Report, name: str, pairs: Sequence[Pair]) -> Row:
    """Return the table's row; overheads are of bare / claim of every pair."""
    report.raw(name, {"bare, claim": [(pair.bare.rate, pair.claimed.rate) for pair in pairs]})
    ratios = [pair.bare.rate / pair.claimed.rate for pair in pairs]
    over = Spread.of(100 * (ratio - 1) for ratio in ratios)
    cpu = Spread.of(100 * (pair.claimed.cpu_seconds / pair.bare.cpu_seconds - 1) for pair in pairs)
    return {
        "program": name,
        "bare/s": statistics.median(pair.bare.rate for pair in pairs),
        "claim/s": statistics.median(pair.claimed.rate for pair in pairs),
        "overhead, % (median)": f"{100 * (statistics.median(ratios) - 1):+.3f}",
        "mean ± its standard error": f"{over.mean:+.3f} ± {over.sd / math.sqrt(over.count):.3f}",
        # The host may take shared processors away without counting that time as stolen.
        "processor time, %": f"{cpu.mean:+.3f} ± {cpu.sd / math.sqrt(cpu.count):.3f}",
        "pairs": over.count,
        "ratio": f"{1 / statistics.median(ratios):.4f}",
        "target": "" if "churn" in name else "0.3 %" if name in GPU_BOUND else "1 %",
    }


PART = Part("overhead", "whole programs without a limit in force", measure, seconds=WINDOW_SECONDS, torch=True)
