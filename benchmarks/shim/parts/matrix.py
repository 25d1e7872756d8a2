"""Limits under programs that launch several kinds of kernels and wait for them every few launches.

A cell is a program and a limit. Each program runs bare first, which calibrates how long its kernels really take and
shows what it wants; then one start under a claim serves all limits. GPU time is judged by the program's own reckoning:
kernels finished × their calibrated durations, overlap counted once. The page's figure only stands beside it.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from benchmarks.shim.pages import Claim
from benchmarks.shim.part import Part
from benchmarks.shim.processes import Process, Row
from benchmarks.shim.report import Cell, Report
from benchmarks.shim.sampling import count_at
from benchmarks.shim.stage import Stage

LIMITS = (10, 25, 50, 75, 90, 100)
START_SECONDS = 20.0
# The first launches of each kind are measured one by one, and the credit of the start is spent.
LEARN_SECONDS = 0.4
# A limit is in force within 100 ms.
SETTLE_SECONDS = 0.15
# Twice: any disturbance of a bare run lowers the program's measured demand.
BARE_SECONDS, BARE_LOOKS, BARE_WARM_SECONDS = 0.25, 2, 0.1
# A step may end so much later than the measurement: 20 ms of work at 10 % take 200 ms.
STEP_SECONDS = 0.6
POLL_SECONDS = 0.02
# The invariants: fraction of the limit, points above it, fraction of the launches that the GPU time allows.
LEAST_SHARE, MOST_ABOVE, LEAST_RATE = 0.9, 1.0, 0.95
# A GPU that is given from one process to another every 2 ms loses time that no kernel gets.
SWITCHING = 0.92


@dataclass(frozen=True)
class Program:
    """One program of the matrix, in gpumix's terms; ``microseconds`` has a duration for each kind."""

    microseconds: tuple[int, ...]
    wait_every: int
    wait: str
    streams: int = 1
    processes: int = 1
    differ: str = "function"
    cpu_us: int = 0

    def options(self) -> list[str]:
        return [
            *("--kinds", str(len(self.microseconds)), "--durations-us", ",".join(map(str, self.microseconds))),
            *("--wait-every", str(self.wait_every), "--wait", self.wait, "--streams", str(self.streams)),
            *("--differ", self.differ, "--cpu-us", str(self.cpu_us)),
        ]

    def __str__(self) -> str:
        more = [f"by {self.differ}"] if self.differ != "function" else []
        more += [f"{self.streams} streams"] if self.streams > 1 else []
        more += [f"{self.processes} processes"] if self.processes > 1 else []
        more += [f"{self.cpu_us} µs of host work"] if self.cpu_us else []
        kinds = ", ".join(map(str, self.microseconds))
        return "; ".join([f"{kinds} µs", f"{self.wait} every {self.wait_every}", *more])


# A sample in which each way of waiting, number of kinds, streams and processes occurs with short and with long kernels.
PROGRAMS = (
    Program((200,), 10, "stream"),
    Program((50, 5), 2, "device"),
    Program((3,), 1, "stream"),
    Program((5, 3), 100, "event"),
    Program((20, 60, 200), 3, "event"),
    Program((3, 10, 30, 60, 100, 200, 500, 1000), 10, "stream", differ="both"),
    Program((8, 20, 300, 50, 120, 10), 60, "stream", differ="argument"),
    Program((100, 5, 300, 20), 4, "copy"),
    Program((200, 10), 5, "poll", differ="grid"),
    Program((10, 40, 15), 1, "copy"),
    Program((10000, 100), 2, "stream"),
    Program((10, 5000, 10000, 20, 5), 1, "event", streams=2, differ="grid"),
    Program((30, 8, 120), 20, "device", cpu_us=10),
    Program((5, 200, 10), 20, "copy", streams=4, differ="both"),
    Program((5, 10, 20, 3, 50, 8, 15, 30), 50, "device"),
    Program((80, 20, 5), 7, "poll", differ="both"),
    Program((500, 50, 200, 20), 8, "device", streams=4),
    Program((40, 10), 12, "event", streams=2),
    Program((2000, 100, 300), 6, "stream", streams=3),
    Program((400, 30, 100), 6, "stream", processes=3),
    Program((100, 2000, 10), 4, "device", streams=2, processes=2),
)
QUICK_PROGRAMS = PROGRAMS[:1]


@dataclass(frozen=True)
class Figures:
    """Figures of all processes of a program: GPU time in percent by their own reckoning, launches a second.

    ``unsure`` percent of it are what kernels on an idle GPU are taken to need beyond the time for which they spin: a
    convention that events cannot settle. It counts against starvation, not against the limit.
    """

    share: float
    rate: float
    unsure: float = 0.0


@dataclass(frozen=True)
class Judged:
    """Figures of a cell, and the demands of its limit."""

    limit: int
    share: float
    page: float
    wanted: float
    rate_ratio: float
    broken: tuple[str, ...]


def judge(limit: int, bare: Figures, got: Figures, page: float, processes: int = 1) -> Judged:
    """Hold a cell against the invariants.

    Kernels that spin by the GPU's clock go on spinning while another process has the GPU, so several processes reckon
    with more than the whole of it; what they got is scaled as their bare run must be to make 100.
    """
    scale = min(1.0, 100.0 / bare.share) if bare.share else 1.0
    whole, share = bare.share * scale, got.share * scale
    lost = SWITCHING if processes > 1 else 1.0
    wanted = min(float(limit), whole)
    allowed = bare.rate * (wanted / whole if whole else 1.0) * lost
    ratio = got.rate / allowed if allowed else 1.0
    broken = []
    if whole > limit and share < LEAST_SHARE * limit * lost:
        broken.append("starved")
    if share - got.unsure * scale > limit + MOST_ABOVE:
        broken.append("above")
    if ratio < LEAST_RATE:
        broken.append("slow")
    return Judged(limit, share, page, wanted, ratio, tuple(broken))


def measure(stage: Stage, report: Report) -> None:
    rows: list[dict[str, Cell]] = []
    broken: list[dict[str, Cell]] = []
    for program in QUICK_PROGRAMS if stage.quick else PROGRAMS:
        try:
            bare, cells = run(stage, program)
        except Exception as error:  # noqa: BLE001 - the other programs are measured all the same
            report.add_failure(str(program), error)
            continue
        finally:
            stage.clear()
        rows.append(row(program, bare, cells))
        broken += [cell_row(program, bare, cell) for cell in cells if cell.broken]
        report.raw(str(program), {"bare": vars(bare), "cells": [vars(cell) for cell in cells]})
    report.table(
        f"Each program at limits of {', '.join(map(str, LIMITS))} %: least – greatest. Wanted: the limit, or what the "
        "program uses bare where that is less; share: GPU time by its own reckoning; page: as charged; rate: launches "
        "a second against what the wanted GPU time allows",
        rows,
    )
    report.table(
        f"Cells that break an invariant. Starved: less than {LEAST_SHARE} of a limit below the program's use; above: "
        f"more than the limit and {MOST_ABOVE:.0f} point; slow: less than {LEAST_RATE} of the launches",
        broken,
    )
    count = len(rows) * len(LIMITS)
    report.note(f"{len(broken)} of {count} cells break an invariant.")


def row(program: Program, bare: Figures, cells: Sequence[Judged]) -> dict[str, Cell]:
    return {
        "program": str(program),
        "bare share": bare.share,
        "bare launches/s": round(bare.rate),
        "share / wanted": spread([cell.share / cell.wanted for cell in cells if cell.wanted]),
        "page / wanted": spread([cell.page / cell.wanted for cell in cells if cell.wanted]),
        "rate": spread([cell.rate_ratio for cell in cells]),
        "broken": sum(bool(cell.broken) for cell in cells),
    }


def cell_row(program: Program, bare: Figures, cell: Judged) -> dict[str, Cell]:
    return {
        "program": str(program),
        "limit": cell.limit,
        "bare share": bare.share,
        "share": cell.share,
        "page": cell.page,
        "rate": cell.rate_ratio,
        "broken": ", ".join(cell.broken),
    }


def spread(values: Sequence[float]) -> str:
    return f"{min(values):.3f} – {max(values):.3f}" if values else "–"


def run(stage: Stage, program: Program) -> tuple[Figures, list[Judged]]:
    """Run the program bare, then at every limit."""
    with start_program(stage, program, None) as (processes, durations):
        time.sleep(BARE_WARM_SECONDS)
        looks = [figures(processes, BARE_SECONDS)[0] for _ in range(BARE_LOOKS)]
    bare = max(looks, key=lambda look: look.rate)
    claim = stage.claim(LIMITS[-1])
    cells = []
    with start_program(stage, program, claim, durations) as (processes, _):
        claim.limit(stage.gpu.uuid, LIMITS[0])
        time.sleep(LEARN_SECONDS)
        for limit in LIMITS:
            got, page = at_limit(stage, claim, processes, limit)
            cells.append(judge(limit, bare, got, page, program.processes))
    return bare, cells


@contextmanager
def start_program(
    stage: Stage, program: Program, claim: Claim | None, durations: Sequence[str] = ()
) -> Iterator[tuple[list[Process], list[str]]]:
    """Start the program; yield its processes and the options that tell others how long its kernels take."""
    calibrated = durations
    processes: list[Process] = []
    for number in range(program.processes):
        calibrates = claim is None and number == 0
        options = ["--calibrate"] if calibrates else calibrated
        processes.append(stage.gpumix(claim, *program.options(), *options))
        if calibrates:
            calibrated = calibration_options(processes[0].wait("calibrated", START_SECONDS))
    for process in processes:
        wait_for_row(process, 0.0, START_SECONDS)
    try:
        yield processes, list(calibrated)
    finally:
        for process in processes:
            process.terminate()


def calibration_options(calibration: Row) -> list[str]:
    """Return gpumix's options for the durations that a calibration found."""
    lists = {name: ",".join(map(str, calibration[f"{name}_ns"])) for name in ("alone", "queued")}
    return [word for name, values in lists.items() for word in (f"--{name}-ns", values)]


def counted(process: Process) -> list[Row]:
    return [row for row in process.rows() if "launches" in row]


def wait_for_row(process: Process, after: float, seconds: float) -> float:
    """Wait for a step that ends after this time; return when it ended, or now if none did in time."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        for row in counted(process):
            if row["at"] >= after:
                return float(row["at"])
        if not process.alive:
            process.wait("launches", 0.0)
        time.sleep(POLL_SECONDS)
    return time.monotonic()


def at_limit(stage: Stage, claim: Claim, processes: Sequence[Process], limit: int) -> tuple[Figures, float]:
    """Measure the program at the limit; return its figures and the page's share of the same time."""
    claim.limit(stage.gpu.uuid, limit)
    time.sleep(SETTLE_SECONDS)
    return figures(processes, stage.seconds, lambda: claim.usage()["gpu_time_ns"])


def figures(processes: Sequence[Process], seconds: float, page: Callable[[], int] = lambda: 0) -> tuple[Figures, float]:
    """Measure for so long; for a single process from the end of a step to the end of a step."""
    alone = len(processes) == 1
    begin = time.monotonic()
    if alone:
        begin = wait_for_row(processes[0], begin, STEP_SECONDS)
    page_begin, page_ns = time.monotonic(), page()
    time.sleep(max(0.0, begin + seconds - time.monotonic()))
    ends = [wait_for_row(process, begin + seconds, STEP_SECONDS) for process in processes]
    page_share = (page() - page_ns) / (time.monotonic() - page_begin) / 1e7
    end = ends[0] if alone else begin + seconds
    kept = [counted(process) for process in processes]
    busy_ns, extra_ns, launches = (
        sum(grown(rows, name, begin, end) for rows in kept) / (end - begin)
        for name in ("busy_ns", "extra_ns", "launches")
    )
    return Figures(busy_ns / 1e7, launches, extra_ns / 1e7), page_share


def grown(rows: Sequence[Mapping[str, float]], counter: str, begin: float, end: float) -> float:
    return count_at(rows, counter, end) - count_at(rows, counter, begin)


PART = Part("matrix", "limits under mixes of kernels, waits, streams and processes", measure, seconds=0.75)
