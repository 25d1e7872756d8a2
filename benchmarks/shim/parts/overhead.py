"""Cost of the library to whole programs while no limit is in force (GaiaGPU's first experiment; published 1.015 %)."""

import math
import os
import statistics
from collections.abc import Mapping, Sequence

from benchmarks.shim.drive import Ran, run_for, wait_for_imports, warm
from benchmarks.shim.part import Part
from benchmarks.shim.processes import Process
from benchmarks.shim.report import Report
from benchmarks.shim.sampling import Spread
from benchmarks.shim.stage import Stage

# Two processes a mode: the placement of a process's memory makes a difference of its own. Many short rounds: the
# machine's other load changes from second to second by more than the measured difference.
PROCESSES, ROUNDS = 2, 20
# All on the same few processors: some are faster than others for as long as their neighbours rest.
PROCESSORS = 4
PROGRAMS: Mapping[str, tuple[str, ...]] = {
    "small CNN (training)": ("cnn", "--model", "small"),
    "large CNN (training, as ResNet-50)": ("cnn", "--model", "large"),
    "transformer decode, CUDA graphs": ("decode",),
    "GEMM 8192³": ("gemm", "--size", "8192"),
}
ASYNC = {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync", "PYTORCH_ALLOC_CONF": "backend:cudaMallocAsync"}
CHURN: Mapping[str, Mapping[str, str]] = {"default allocator": {}, "cudaMallocAsync": ASYNC}
Row = dict[str, float | int | str | None]
Pairs = Sequence[tuple[Process, Process]]


def measure(stage: Stage, report: Report) -> None:
    claim = stage.claim(100)
    programs: dict[str, Pairs] = {
        name: [(stage.program(None, *how), stage.program(claim, *how)) for _ in range(PROCESSES)]
        for name, how in PROGRAMS.items()
    }
    churns: dict[str, Pairs] = {
        name: [
            (stage.program(None, "churn", more=more), stage.program(claim, "churn", more=more))
            for _ in range(PROCESSES)
        ]
        for name, more in CHURN.items()
    }
    everyone = [one for pairs in (*programs.values(), *churns.values()) for pair in pairs for one in pair]
    for process in everyone:  # before PyTorch makes threads, which inherit the setting
        os.sched_setaffinity(process.pid, sorted(os.sched_getaffinity(0))[-PROCESSORS:])
    wait_for_imports(everyone)
    ratios: dict[str, list[float]] = {}
    rows: list[Row] = []
    for name, pairs in programs.items():
        ratios[name], row = compare(stage, report, name, pairs)
        rows.append(row)
    report.table(
        "Iterations a second, bare and under a claim without limits, in turn; overhead = bare / claim − 1, "
        "one round after the other",
        rows,
    )
    medians = [statistics.median(values) for values in ratios.values()]
    mean = 100 * (math.exp(statistics.mean(math.log(value) for value in medians)) - 1)
    report.note(f"Geometric mean of the overheads (medians): {mean:+.3f} % (target 0.3 %, GaiaGPU published 1.015 %).")
    report.raw("geometric mean, percent", mean)
    churned = [compare(stage, report, f"allocation churn, {name}", pairs)[1] for name, pairs in churns.items()]
    report.table("Allocation churn in PyTorch: rate under the claim / bare (target 0.99)", churned)


def compare(stage: Stage, report: Report, name: str, pairs: Pairs) -> tuple[list[float], Row]:
    """Return bare / claim of every round, and the table's row."""
    for pair in pairs:
        for process in pair:
            warm(process)
    rounds: list[tuple[Ran, Ran]] = []
    for number in range(4 if stage.quick else ROUNDS):
        for bare, claimed in pairs:
            # The order alternates, so that a GPU that grows warm does not favour one mode.
            order = (bare, claimed) if number % 2 else (claimed, bare)
            found = {process.pid: run_for(process, stage.seconds) for process in order}
            rounds.append((found[bare.pid], found[claimed.pid]))
    for pair in pairs:
        for process in pair:
            process.terminate()
    report.raw(name, {"bare, claim": [(bare.rate, claimed.rate) for bare, claimed in rounds]})
    ratios = [bare.rate / claimed.rate for bare, claimed in rounds]
    over = Spread.of(100 * (ratio - 1) for ratio in ratios)
    cpu = Spread.of(100 * (claimed.cpu_seconds / bare.cpu_seconds - 1) for bare, claimed in rounds)
    return ratios, {
        "program": name,
        "bare/s": statistics.median(bare.rate for bare, _ in rounds),
        "claim/s": statistics.median(claimed.rate for _, claimed in rounds),
        "overhead, % (median)": f"{100 * (statistics.median(ratios) - 1):+.3f}",
        "mean ± its standard error": f"{over.mean:+.3f} ± {over.sd / math.sqrt(over.count):.3f}",
        # The host may take shared processors away without counting that time as stolen.
        "processor time, %": f"{cpu.mean:+.3f} ± {cpu.sd / math.sqrt(cpu.count):.3f}",
        "rounds": over.count,
        "ratio": f"{1 / statistics.median(ratios):.4f}",
    }


PART = Part("overhead", "whole programs without a limit in force", measure, seconds=0.15, torch=True)
