"""A client's limit changed while it runs under MPS: the time from the write until it is in force.

The claim's page is read every 2 ms. A limit is in force with the first window of 50 ms that lies near the share at
which the claim settles: credit comes in pieces of 5 ms, and at 10 % there is one in 50 ms. The time until this window
begins is what the library takes; the time until it ends is what an operator sees, and at least 50 ms.
"""

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, repeat

from benchmarks.shim.drive import warm_each
from benchmarks.shim.gaps import Sampler
from benchmarks.shim.mps_groups import Groups
from benchmarks.shim.pages import Claim
from benchmarks.shim.part import Part
from benchmarks.shim.processes import Process, ProcessFailed
from benchmarks.shim.report import Cell, Report
from benchmarks.shim.stage import Stage

# The client's part of the multiprocessors, its limits in turn, and how often.
PART_PERCENT, LIMITS, ROUNDS, QUICK_ROUNDS = 60, (30, 60, 10), 4, 1
STEP_SECONDS, SETTLED_SECONDS, WINDOW_SECONDS, LOOK_SECONDS = 0.5, 0.25, 0.05, 0.002
# Tolerance of a window, in points.
NEAR = 5.0
BESIDE_PERCENT = 30
COURSE_SECONDS, COURSE_WINDOW = 0.3, 0.01
PROGRAMS: Mapping[str, tuple[str, ...]] = {
    "GEMM": ("gemm", "--size", "8192"),
    "small": ("gemm", "--size", "1024"),
    "graphs": ("decode",),
}
SPIN = "kernels of 0.5 ms"


@dataclass(frozen=True)
class Change:
    """One write of a limit: how long until it was in force, and the share at which the claim settled."""

    before: int
    limit: int
    settled: float
    begins_ms: float
    ends_ms: float


def measure(stage: Stage, report: Report) -> None:
    """Measure each program alone, then beside another client of the server, without the arbiter and with it."""
    groups = Groups(stage)
    try:
        groups.start("first")
        spin = stage.claim(LIMITS[-1], backend="mps")
        spinning = stage.gpuload(spin, "--kernel-us", "500", more=groups.variables("first", PART_PERCENT))
        spinning.wait(seconds=30)
        rows = [*follow(stage, report, f"{SPIN}, no arbiter", spin)]
        stage.arbiter()
        time.sleep(STEP_SECONDS)
        rows += follow(stage, report, SPIN, spin)
        spinning.terminate()
        if not stage.simulated and stage.torch() is not None:
            rows += programs(stage, report, groups)
        report.table(
            f"A client with a part of {PART_PERCENT} %: milliseconds from the write of a limit until a window of "
            f"{WINDOW_SECONDS * 1000:.0f} ms within {NEAR:.0f} points begins, and until it ends; median, and greatest "
            f"of {rounds(stage)}",
            rows,
        )
    finally:
        stage.clear()
        groups.close()


def rounds(stage: Stage) -> int:
    return QUICK_ROUNDS if stage.quick else ROUNDS


def programs(stage: Stage, report: Report, groups: Groups) -> list[dict[str, Cell]]:
    """Measure PyTorch programs; what fails is reported and the others are measured all the same."""
    claims = {name: stage.claim(LIMITS[-1], backend="mps") for name in PROGRAMS}
    more = groups.variables("first", PART_PERCENT)
    started = {name: stage.program(claims[name], *how, more=more) for name, how in PROGRAMS.items()}
    claims["beside"] = stage.claim(BESIDE_PERCENT, backend="mps")
    more = groups.variables("first", BESIDE_PERCENT)
    started["beside"] = stage.program(claims["beside"], *PROGRAMS["GEMM"], more=more)
    for name, error in warm_each(started).items():
        report.add_failure(f"warming {name}", error)
    length = (rounds(stage) + 1) * len(LIMITS) * STEP_SECONDS + 1
    rows: list[dict[str, Cell]] = []
    for name, others in (*((one, ()) for one in PROGRAMS), ("GEMM", ("beside",))):
        running: list[Process] = [started[one] for one in (name, *others)]
        try:
            for program in running:
                program.say(f"run {length}")
            time.sleep(STEP_SECONDS)
            rows += follow(stage, report, f"{name} beside a GEMM" if others else name, claims[name])
            for program in running:
                program.wait("ran", length + 20)
        except ProcessFailed as error:
            report.add_failure(f"{name} {others}", error)
    return rows


def follow(stage: Stage, report: Report, name: str, claim: Claim) -> list[dict[str, Cell]]:
    """Change the claim's limit again and again; return a row for each change."""
    writes: list[tuple[int, int, float]] = []
    before = LIMITS[-1]
    with Sampler({"it": claim}) as sampler:
        for limit in chain.from_iterable(repeat(LIMITS, rounds(stage))):
            writes.append((before, limit, time.monotonic()))
            claim.limit(stage.gpu.uuid, limit, backend="mps")
            time.sleep(STEP_SECONDS)
            before = limit
    changes = [judge(sampler, *write) for write in writes]
    report.raw(f"{name}, changes", [vars(change) for change in changes])
    # The first change may find a program that has only begun.
    last = writes[-len(LIMITS) :]
    courses = {f"{before} → {limit}": course(sampler, written) for before, limit, written in last}
    report.raw(f"{name}, courses", courses)
    return [make_row(name, [one for one in changes if one.limit == limit]) for limit in LIMITS]


def judge(sampler: Sampler, before: int, limit: int, written: float) -> Change:
    """Return how long a change took: infinite if no window before it settles is near."""
    settled = sampler.share("it", written + SETTLED_SECONDS, written + STEP_SECONDS)
    for number in range(int((STEP_SECONDS - WINDOW_SECONDS) / LOOK_SECONDS)):
        begin = written + number * LOOK_SECONDS
        if abs(sampler.share("it", begin, begin + WINDOW_SECONDS) - settled) <= NEAR:
            begins = number * LOOK_SECONDS
            return Change(before, limit, settled, 1000 * begins, 1000 * (begins + WINDOW_SECONDS))
    return Change(before, limit, settled, float("inf"), float("inf"))


def course(sampler: Sampler, written: float) -> list[float]:
    """Return the shares of short windows after the write, the last one before it included."""
    starts = (written + number * COURSE_WINDOW for number in range(-1, int(COURSE_SECONDS / COURSE_WINDOW)))
    return [round(sampler.share("it", start, start + COURSE_WINDOW), 1) for start in starts]


def make_row(name: str, changes: Sequence[Change]) -> dict[str, Cell]:
    ends = [change.ends_ms for change in changes]
    return {
        "program": name,
        "limit %": f"{changes[-1].before} → {changes[-1].limit}",
        "page %": f"{statistics.mean(change.settled for change in changes):.1f}",
        "begins": statistics.median(change.begins_ms for change in changes),
        "ends": statistics.median(ends),
        "greatest": max(ends),
        "within 100 ms": f"{sum(one <= 100 for one in ends)} of {len(ends)}",
    }


PART = Part("mps-live", "MPS: limits changed while a client runs", measure, seconds=1.0)
