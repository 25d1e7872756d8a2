"""A limit changed while a program runs: the time from the write until it is in force."""

import itertools
import statistics
import time
from collections.abc import Sequence

from benchmarks.shim.pages import Claim
from benchmarks.shim.part import Part
from benchmarks.shim.plot import lines
from benchmarks.shim.processes import Process
from benchmarks.shim.report import Report
from benchmarks.shim.sampling import Window, watch
from benchmarks.shim.stage import Stage

MOVES, PAUSES, QUICK_MOVES = 20, 10, 4
LOW, HIGH = 25, 75
# Tolerance of a window, in points: a window of 20 ms holds few bursts.
NEAR = 8.0
WINDOW_SECONDS, SAMPLE_SECONDS = 0.02, 0.002
AFTER_SECONDS, SETTLE_SECONDS = 0.3, 0.3
KERNEL_US = 500.0
GIB = 1 << 30
MEMORY_SECONDS = 5.0
Row = dict[str, float | int | str | None]


def measure(stage: Stage, report: Report) -> None:
    moves(stage, report)
    stage.clear()
    pauses(stage, report)
    stage.clear()
    memory(stage, report)


def moves(stage: Stage, report: Report) -> None:
    claim = stage.claim(LOW)
    process = stage.gpuload(claim, "--kernel-us", str(KERNEL_US), interval=SAMPLE_SECONDS)
    process.wait(seconds=20)
    time.sleep(SETTLE_SECONDS)
    taken: dict[str, list[float]] = {f"{LOW} → {HIGH}": [], f"{HIGH} → {LOW}": []}
    own: dict[str, list[float]] = {name: [] for name in taken}
    course: Sequence[Window] = []
    for number in range(QUICK_MOVES if stage.quick else MOVES):
        limit = LOW if number % 2 else HIGH
        name = f"{HIGH} → {LOW}" if number % 2 else f"{LOW} → {HIGH}"
        seen = len(process.rows())
        written, windows = move(stage, claim, limit)
        taken[name].append(in_force(windows, written, limit))
        own[name].append(in_force(own_windows(process, seen), written, limit))
        course = [*course, *windows]
    rows = [
        row(f"{name}, {by}", values) for by, kept in (("page", taken), ("own", own)) for name, values in kept.items()
    ]
    report.raw("milliseconds by the page", taken)
    report.raw("milliseconds by the program", own)
    report.table(
        f"Milliseconds from writing a limit to the end of the first whole window of {WINDOW_SECONDS * 1e3:.0f} ms "
        f"within {NEAR:.0f} points of it (at least {WINDOW_SECONDS * 1e3:.0f}; target 100); a flood of "
        f"{KERNEL_US:.0f} µs kernels",
        rows,
    )
    begin = course[0].begin
    smooth = slide(course)
    report.plot(
        "moves",
        lines(
            "A limit moved between 25 and 75 % while the program runs", "seconds", "share of GPU time, %",
            {"20 ms windows": [(window.end - begin, window.share) for window in smooth]}, top=100,
        ),
    )  # fmt: skip


def move(stage: Stage, claim: Claim, limit: int) -> tuple[float, Sequence[Window]]:
    written = time.monotonic()
    claim.limit(stage.gpu.uuid, limit)
    return written, watch({"claim": claim}, AFTER_SECONDS, SAMPLE_SECONDS)["claim"].windows


def own_windows(process: Process, seen: int) -> list[Window]:
    """Return windows by the program's own count of finished kernels."""
    rows = [row for row in process.rows()[seen:] if "kernels" in row]
    pairs = [(a, b) for a, b in itertools.pairwise(rows) if b["at"] > a["at"]]
    percent = KERNEL_US / 1e4
    return [Window(a["at"], b["at"], percent * (b["kernels"] - a["kernels"]) / (b["at"] - a["at"])) for a, b in pairs]


def slide(windows: Sequence[Window]) -> list[Window]:
    """Return windows of at least 20 ms, one ending at each sample."""
    found: list[Window] = []
    first, busy = 0, 0.0
    for window in windows:
        busy += window.share * (window.end - window.begin)
        while window.end - windows[first + 1].begin >= WINDOW_SECONDS * 0.999 and windows[first + 1] is not window:
            busy -= windows[first].share * (windows[first].end - windows[first].begin)
            first += 1
        length = window.end - windows[first].begin
        if length >= WINDOW_SECONDS * 0.999:
            found.append(Window(windows[first].begin, window.end, busy / length))
    return found


def in_force(windows: Sequence[Window], written: float, limit: int) -> float:
    """Return the milliseconds until a window after the write lies near the limit; infinite if none does."""
    after = [window for window in windows if window.begin >= written]
    near = (window for window in slide(after) if abs(window.share - limit) <= NEAR)
    first = next(near, None)
    return 1000 * (first.end - written) if first else float("inf")


def row(name: str, values: Sequence[float]) -> Row:
    ordered = sorted(values)
    return {
        "change": name,
        "times": len(ordered),
        "median, ms": statistics.median(ordered),
        "95 %": ordered[round(0.95 * (len(ordered) - 1))],
        "greatest": ordered[-1],
    }


def pauses(stage: Stage, report: Report) -> None:
    """Set a limit of 0, then of 50 again."""
    claim = stage.claim(50)
    process = stage.gpuload(claim, "--kernel-us", str(KERNEL_US), interval=SAMPLE_SECONDS)
    process.wait(seconds=20)
    stopped, resumed = [], []
    for _ in range(QUICK_MOVES if stage.quick else PAUSES):
        time.sleep(0.2)
        written, windows = move(stage, claim, 0)
        busy = [window.end for window in windows if window.share > 0]
        stopped.append(max(0.0, 1000 * (busy[-1] - written)) if busy else 0.0)
        seen = len(process.rows())
        written, _ = move(stage, claim, 50)
        first = next((line["at"] for line in process.rows()[seen:] if line.get("at", 0.0) > written), float("inf"))
        resumed.append(1000 * (first - written))
    report.raw("paused and resumed, milliseconds", {"stopped": stopped, "resumed": resumed})
    report.table(
        "A limit set to 0 and back to 50: milliseconds from the write to the last GPU time charged, and to the first "
        "launch let through",
        [row("50 → 0", stopped), row("0 → 50", resumed)],
    )


def memory(stage: Stage, report: Report) -> None:
    """Run a program that holds 1 GiB and tries to allocate 2 GiB more every 20 ms."""
    claim = stage.claim(100, memory=2 * GIB)
    sizes = ("--kernel-us", "0", "--memory", "1GiB", "--grow", "2GiB", "--every", "0.02")
    process = stage.gpuload(claim, *sizes, interval=0.02)
    process.wait("grow", 20)
    time.sleep(SETTLE_SECONDS)
    raised = memory_move(stage, claim, process, 8 * GIB, granted=True)
    lowered = memory_move(stage, claim, process, GIB // 2, granted=False)
    time.sleep(SETTLE_SECONDS)
    last = next(line for line in reversed(process.rows()) if "free_bytes" in line)
    report.table(
        "A memory limit moved while a program holds 1 GiB and tries for 2 GiB more every 20 ms",
        [
            {"change": "2 → 8 GiB", "ms until the next try that shows it": raised, "the program": "is granted them"},
            {
                "change": "8 → 0.5 GiB, below its use",
                "ms until the next try that shows it": lowered,
                "the program": f"{'runs on' if process.alive else 'ENDED'}, is refused, holds "
                f"{last['held_bytes'] >> 20} MiB, free shows {last['free_bytes'] >> 20} MiB",
            },
        ],
    )


def memory_move(stage: Stage, claim: Claim, process: Process, limit: int, *, granted: bool) -> float:
    seen = len(process.rows())
    written = time.monotonic()
    claim.limit(stage.gpu.uuid, 100, memory=limit)
    while time.monotonic() < written + MEMORY_SECONDS:
        for line in process.rows()[seen:]:
            if line.get("event") == "grow" and line["at"] > written and (line["error"] == 0) == granted:
                return float(1000 * (line["at"] - written))
        time.sleep(0.01)
    return float("inf")


PART = Part("change", "limits changed while a program runs", measure, seconds=1.0)
