"""``make test``, ``make test-fast`` and ``make test-long``: every suite in order, then one table of what happened.

    python -m tests.run [--fast | --long] [pytest's arguments…]

Suites that measure shares by the clock come first: C chapters in lanes, because they wait for nine tenths of their
time, and Python tests marked ``alone`` beside them. Everything else runs together afterwards: tests that start a whole
platform or servers (``serial``) and those of the agent wait more than they compute, the other Python tests compute more
than they wait, and the remaining C chapters and the sanitizers' builds are short. A few failures of a crowded run are
repeated once at the end, alone: the table says so, and a second failure counts (docs/decisions/0043, 0062, 0073, 0101).
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from xml.etree import ElementTree as ET

ROOT = Path(__file__).resolve().parent.parent
# pytest's status when tests failed, and when a selection is empty.
FAILURES, NO_TESTS = 1, 5
# More failures than these are not due to a crowded machine: six were, on one with half the usual speed.
FEW = 10
AGAIN = ", again"
# More together than the minimum of two cores: tests wait for agents, browsers and restarts. Each process that shares a
# platform starts one, which idles when nobody asks it for anything.
PROCESSES, AGENTS, PLATFORMS = "3", "2", "2"
# Tests of platforms measure shares and delays, too: the tests beside them compute when these wait.
AFTER_OTHERS = ("nice", "-n", "5")
# The C suites and their targets in libvcuda/Makefile. Chapters by the clock use 2 to 22 % of a processor each, all of
# them and the Python tests by the clock 40 % of two; the lanes last as long as one another.
TIMED = {
    "C, by the clock 1": "compute legacy compat",
    "C, by the clock 2": "mix copies",
    "C, by the clock 3": "charges sweep",
    "C, by the clock 4": "arbiter turns ahead",
    "C, by the clock 5": "suspend mps memops lending lent",
}
C_SUITES = {
    **{suite: f"chapters CHAPTERS={chapters}" for suite, chapters in TIMED.items()},
    "C, the rest": "test-untimed", "C, sanitizers": "sanitize", "C, long": "test-long",
}  # fmt: skip
TOGETHER = "not long and not serial and not alone and not containers and not kubelet"
# Those that share a platform, and those that start servers of their own.
SHARED = "serial and shared and not long"
SERVERS = "serial and not shared and not long"
# What a change of Python is tried with first: each function once, and nothing that waits for other processes. Tests of
# pages are a third of what is left, in processor time.
FAST = f"{TOGETHER} and not committed and not browser and not slow"
MARKS = {
    "Python, fast": FAST,
    "Python, long": "long",
    "Python, examples": f"hypothesis and {TOGETHER}",
    "Python, containers": "containers",
    "Python, kubelet": "kubelet",
    "Python, by the clock": "alone and not long",
    "Python": TOGETHER,
    "Python, agents": TOGETHER,
    "Python, servers": SERVERS,
    "Python, platforms": SHARED,
}
NOT_FAST = (
    "agent",
    "benchmarks",
    "browser",
    "containers",
    "demo",
    "e2e",
    "embedded",
    "fuzz",
    "gallery",
    "kubelet",
    "pages",
)
# Where the tests marked ``alone`` are, and those marked ``serial``: every process would read all files to find them.
BY_THE_CLOCK = ("tests/benchmarks",)
OF_AGENTS = "tests/agent"
ON_PLATFORMS = tuple(f"tests/{name}" for name in ("e2e", "fuzz", "demo", "browser", "cli", "clusters"))
# A module's tests stay together, with what they share, until a process has nothing left to do.
STEALING = ("--dist", "worksteal")
# In the order of tests/conftest.py: the longest first.
BY_FILES = ("--dist", "loadfile", "--no-loadscope-reorder")


@dataclass(frozen=True)
class Row:
    """One suite's outcome; a count is None if the suite has none."""

    suite: str
    passed: int | None
    failed: int | None
    skipped: int | None
    seconds: float
    # Processor time, of all processes that ended in order.
    cpu_seconds: float
    status: int

    @property
    def good(self) -> bool:
        return self.status in {0, NO_TESTS}

    @property
    def may_be_the_crowd(self) -> bool:
        return self.status == FAILURES and bool(self.passed) and 0 < (self.failed or 0) <= FEW


def pytest_suite(suite: str, *arguments: str, caches: Path, before: Sequence[str] = ()) -> list[Row]:
    """Run a suite of Python tests, or with `--last-failed` its repeat; pytest's cache says what failed."""
    name = suite.removesuffix(AGAIN)
    report, cache = caches / f"{suite}.xml", caches / name
    options = ["-m", MARKS[name], "-o", f"cache_dir={cache}", f"--junit-xml={report}", *arguments]
    command = [*before, sys.executable, "-m", "pytest", "-q", *options]
    used, _ = run_command(command)
    return [Row(suite, *counts(report), *used)]


def run_command(command: Sequence[str], *, captured: bool = False) -> tuple[tuple[float, float, int], str]:
    """Run a command; return its seconds, processor seconds and status, and what it printed if that is captured."""
    begun = time.monotonic()
    output, errors = (subprocess.PIPE, subprocess.STDOUT) if captured else (None, None)
    process = subprocess.Popen(command, cwd=ROOT, text=True, stdout=output, stderr=errors)
    printed = process.stdout.read() if process.stdout else ""
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return (time.monotonic() - begun, usage.ru_utime + usage.ru_stime, process.returncode), printed


def counts(report: Path) -> tuple[int, int, int]:
    """Return passed, failed and skipped from a JUnit report; nothing if pytest wrote none."""
    if not report.exists():
        return 0, 1, 0
    total = failed = skipped = 0
    for suite in ET.parse(report).iter("testsuite"):  # noqa: S314 - pytest wrote it just now
        total += int(suite.get("tests", 0))
        failed += int(suite.get("failures", 0)) + int(suite.get("errors", 0))
        skipped += int(suite.get("skipped", 0))
    return total - failed - skipped, failed, skipped


def c_suite(suite: str, *, beside_others: bool = False) -> list[Row]:
    """Run a C suite; beside others it prints everything at its end, in one piece."""
    target = C_SUITES[suite.removesuffix(AGAIN)].split(" ", 1)
    command = ["make", "--no-print-directory", "-C", "libvcuda", *target]
    used, printed = run_command(command, captured=beside_others)
    print(printed, end="", flush=True)
    return [Row(suite, None, None, None, *used)]


def beside(*lanes: Sequence[Callable[[], list[Row]]]) -> list[Row]:
    """Run all lanes at once, each lane in order; return the rows in the order given."""

    def driven(lane: Sequence[Callable[[], list[Row]]]) -> list[Row]:
        return [row for suite in lane for row in suite()]

    with ThreadPoolExecutor(len(lanes)) as threads:
        return [row for rows in threads.map(driven, lanes) for row in rows]


def suites_again(rows: list[Row], caches: Path) -> list[Row]:
    """Repeat what other work may have disturbed: a few failed tests, and C suites as a whole, which measure."""
    repeated = []
    for row in rows:
        if row.suite in MARKS and row.may_be_the_crowd:
            print(f"\n{row.suite}: what failed is asked once more, alone\n", flush=True)
            repeated += pytest_suite(f"{row.suite}{AGAIN}", "--last-failed", caches=caches)
        elif row.suite in C_SUITES and not row.good:
            repeated += c_suite(f"{row.suite}{AGAIN}")
    return repeated


def table(rows: list[Row]) -> str:
    lines = [f"{'suite':<26}{'passed':>8}{'failed':>8}{'skipped':>9}{'seconds':>9}{'cpu':>8}"]
    for row in rows:
        numbers = "".join(
            f"{'–' if count is None else count:>{width}}"
            for count, width in ((row.passed, 8), (row.failed, 8), (row.skipped, 9))
        )
        outcome = "ok" if row.good else "FAILED"
        lines.append(f"{row.suite:<26}{numbers}{row.seconds:>9.1f}{row.cpu_seconds:>8.1f}  {outcome}")
    return "\n".join(lines)


def is_good(rows: list[Row]) -> bool:
    """Return True if every suite passed; the last result of a repeated one counts."""
    return all(row.good for row in {row.suite.removesuffix(AGAIN): row for row in rows}.values())


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.run", description=(__doc__ or "").partition("\n")[0])
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--fast", action="store_true", help="each test once, without platforms, browsers and libvcuda")
    which.add_argument("--long", action="store_true", help="the long counts only")
    arguments, extra = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as directory:
        caches = Path(directory)
        selection = run_fast if arguments.fast else run_long if arguments.long else run_all
        rows = selection(caches, extra)
        rows += suites_again(rows, caches)
    print(f"\n{table(rows)}")
    return 0 if is_good(rows) else 1


def run_fast(caches: Path, extra: list[str]) -> list[Row]:
    without = [f"--ignore=tests/{name}" for name in NOT_FAST]
    return pytest_suite("Python, fast", "--once", *without, "-n", PROCESSES, *STEALING, *extra, caches=caches)


def run_long(caches: Path, extra: list[str]) -> list[Row]:
    return [
        *c_suite("C, long"),
        *pytest_suite("Python, long", "--timeout=3600", "--all-examples", *extra, caches=caches),
        *pytest_suite("Python, examples", "--all-examples", *extra, caches=caches),
        *pytest_suite("Python, containers", *(extra or ["tests/containers"]), caches=caches),
        *pytest_suite("Python, kubelet", *(extra or ["tests/kubelet"]), caches=caches),
    ]


def run_all(caches: Path, extra: list[str]) -> list[Row]:
    """Run what measures by the clock, then all else; pytest's arguments may say which tests."""
    suite = partial(pytest_suite, caches=caches)
    python = ["-n", PROCESSES, *STEALING, *(extra or [f"--ignore={OF_AGENTS}"])]
    agents = ["-n", AGENTS, *STEALING, OF_AGENTS]
    serial = extra or ON_PLATFORMS
    return [
        *beside(
            *([partial(c_suite, name, beside_others=True)] for name in TIMED),
            [partial(suite, "Python, by the clock", *(extra or BY_THE_CLOCK))],
        ),
        *beside(
            [partial(c_suite, name, beside_others=True) for name in ("C, the rest", "C, sanitizers")],
            [partial(suite, "Python", *python, before=AFTER_OTHERS)],
            [] if extra else [partial(suite, "Python, agents", *agents, before=AFTER_OTHERS)],
            [partial(suite, "Python, servers", *serial)],
            [partial(suite, "Python, platforms", "-n", PLATFORMS, *BY_FILES, *serial)],
        ),
    ]


if __name__ == "__main__":
    sys.exit(main())
