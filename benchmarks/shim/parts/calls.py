"""Cost of a call: bare, under a claim without limits, under a limited one; in turn, many times.

Processes differ by more than a launch may cost: the other tables compare within one process. One compares hooked calls
with the driver's own; one takes a churn of allocations apart, by kinds of hooked calls; and one is about the driver
alone: what a timing event costs the thread that records it, which is the floor of what the library can cost.
"""

import os
import statistics
import time
from collections.abc import Mapping, Sequence

from benchmarks.shim.pages import Claim
from benchmarks.shim.part import Part
from benchmarks.shim.report import Report
from benchmarks.shim.sampling import Spread
from benchmarks.shim.stage import BUILD, Stage

ROUNDS, QUICK_ROUNDS = 5, 2
# A quick run does one loop in ten.
QUICK_SHARE = 10
LIMITED_PERCENT = 90
CHURN_ROUNDS, QUICK_CHURN_ROUNDS = 60, 3
# By bench_churn's names: what is the library's own in these windows.
CHURN_MODES = {
    "kernel": "the account of the kernel's calls only",
    "alloc": "and hooked cudaMallocAsync, cudaFreeAsync",
    "launch": "and hooked launches",
    "wait": "and hooked waits and trims",
    "all": "all hooks",
}
CHURN_CALLS = ("step", "alloc", "free", "launch", "wait", "empty")
EVENT_FIGURES = (
    "launch", "launch_after_event", "event", "first_launch", "first_launch_after_event", "first_event",
)  # fmt: skip
ENOUGH_MEMORY = 8 << 30
MODES = ("bare", "unlimited", "limited")
# The calls by bench_calls' names, and their largest additional cost in ns. The process starts once a round.
CALLS = {
    "launch": ("kernel launch", 25),
    "launch_and_wait": ("kernel launch + cudaStreamSynchronize", 300),
    "graph_launch": ("graph launch (10 nodes)", 40),
    "malloc_2mib": ("cudaMalloc + cudaFree, 2 MiB", 1_000),
    "async_pair": ("cudaMallocAsync + cudaFreeAsync", 120),
    "small_pair": ("cudaMalloc + cudaFree, 512 B", 300),
    "small_pair_10000_live": ("the same, 10,000 live", 300),
    "start_ns": ("process start to context", 3_000_000),
}
Figures = dict[str, list[float]]


def measure(stage: Stage, report: Report) -> None:
    claims: dict[str, Claim | None] = {
        "bare": None,
        "unlimited": stage.claim(100),
        "limited": stage.claim(LIMITED_PERCENT, memory=ENOUGH_MEMORY),
    }
    rounds: list[dict[str, Figures]] = []
    for number in range(QUICK_ROUNDS if stage.quick else ROUNDS):
        # Another mode is first in each round, so that no mode always follows the same one.
        order = [MODES[(number + step) % len(MODES)] for step in range(len(MODES))]
        rounds.append({mode: once(stage, claims[mode]) for mode in order})
    report.raw("rounds", rounds)
    known = [call for call in CALLS if all(call in figures for figures in rounds[0].values())]
    report.table(
        f"Nanoseconds a call, {len(rounds)} processes a mode in turn, pinned to one processor: median of the "
        "processes' medians; added = median ± sd of the differences within a round; least = difference of the least "
        "figures of all",
        [row(call, rounds) for call in known],
    )
    within = [call for call in known if all(f"added_{call}" in figures["unlimited"] for figures in rounds)]
    report.table(
        f"Nanoseconds that hooked calls take longer than the driver's own, in loops in turn within one process: "
        f"median of {len(rounds)} processes' medians (least – greatest), and the mean standard error within a process",
        [row_within(call, rounds) for call in within],
    )
    measure_churn(stage, report, claims["unlimited"])
    measure_events(stage, report)


def measure_churn(stage: Stage, report: Report, claim: Claim | None) -> None:
    """Add a table of what each kind of hooked call adds to a step that allocates, launches and frees."""
    rounds = QUICK_CHURN_ROUNDS if stage.quick else CHURN_ROUNDS
    found: list[Mapping[str, Figures]] = []
    for _ in range(1 if stage.quick else 2):
        process = stage.start([BUILD / "tests" / "bench_churn", "--rounds", str(rounds), "--cpu", last_cpu()], claim)
        found.append(process.finish(120)[-1])
    report.raw("churn", found)
    rows: list[dict[str, float | int | str]] = []
    for figures in found:
        rows.append({"the library's": "nothing: ns", **{call: round(figures["bare"][call][0]) for call in CHURN_CALLS}})
        rows += [
            {
                "the library's": f"{title}: added",
                **{call: "{:+,.0f} ± {:,.0f}".format(*figures[mode][call]) for call in CHURN_CALLS},
            }
            for mode, title in CHURN_MODES.items()
            if mode in figures
        ]
    report.table("A churn of cudaMallocAsync in C, a process each: ns a step, and of that in each kind of call", rows)


def measure_events(stage: Stage, report: Report) -> None:
    """Add a table of what timing events cost, without the library."""
    found = stage.start([BUILD / "tests" / "bench_events"]).finish(120)
    report.raw("events", found)
    report.table(
        "Timing events without the library: median ns of a call; first: after a rest of 6 ms",
        [
            {
                "loop of": each["loop"],
                "an event every": each["every"] or "–",
                **{name: round(each[name][0]) if name in each else "" for name in EVENT_FIGURES},
            }
            for each in found
        ],
    )


def last_cpu() -> str:
    return str(max(os.sched_getaffinity(0)))


def once(stage: Stage, claim: Claim | None) -> Figures:
    """Run one process; return [median, least] nanoseconds of each call."""
    began = time.monotonic_ns()
    quick = ["--share", str(QUICK_SHARE)] if stage.quick else []
    process = stage.start([BUILD / "tests" / "bench_calls", "--began", str(began), "--cpu", last_cpu(), *quick], claim)
    said = process.finish(60)[-1]
    return {name: value if isinstance(value, list) else [value, value] for name, value in said.items()}


def row(call: str, rounds: Sequence[Mapping[str, Figures]]) -> dict[str, float | int | str]:
    title, most = CALLS[call]
    medians = {mode: statistics.median(figures[mode][call][0] for figures in rounds) for mode in MODES}
    least = {mode: min(figures[mode][call][1] for figures in rounds) for mode in MODES}
    cells: dict[str, float | int | str] = {"call": title, **{mode: round(medians[mode]) for mode in MODES}}
    for mode in MODES[1:]:
        added = [figures[mode][call][0] - figures["bare"][call][0] for figures in rounds]
        cells[f"added, {mode}"] = f"{statistics.median(added):+,.0f} ± {Spread.of(added).sd:,.0f}"
        cells[f"least, {mode}"] = f"{least[mode] - least['bare']:+,.0f}"
    return {**cells, "target": f"≤ {most:,}"}


def row_within(call: str, rounds: Sequence[Mapping[str, Figures]]) -> dict[str, float | int | str]:
    title, most = CALLS[call]
    cells: dict[str, float | int | str] = {"call": title}
    for mode in MODES[1:]:
        medians = sorted(figures[mode][f"added_{call}"][0] for figures in rounds)
        error = statistics.mean(figures[mode][f"added_{call}"][1] for figures in rounds)
        cells[mode] = f"{statistics.median(medians):+,.0f} ({medians[0]:+,.0f} – {medians[-1]:+,.0f}) ± {error:,.0f}"
    return {**cells, "target": f"≤ {most:,}"}


PART = Part("calls", "what a call costs, beside bare ones", measure, seconds=1.0)
