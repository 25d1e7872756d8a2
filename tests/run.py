"""``make test``, ``make test-fast`` and ``make test-long``: every suite in order, then one table of what happened.

    python -m tests.run [--fast | --long] [pytest's arguments…]

Suites that measure shares by the clock come first: C chapters, three at a time because they wait for nine tenths of
their time, then Python tests marked ``alone``. The other chapters run beside the Python tests. Tests that start a whole
platform are marked ``serial`` and come last, a few at a time; they wait more than they compute, so the sanitizers'
builds run beside them. A few failures of a crowded run are repeated once, alone: the table says so, and a second
failure counts (docs/decisions/0043, 0062).
"""

import argparse
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
# More failures than these are not due to a crowded machine.
FEW = 4
AGAIN = ", again"
# More than the minimum of two cores: tests wait for agents, browsers and restarts for half of their time and more.
PROCESSES, PLATFORMS = "5", "3"
# The C suites and their targets in libvcuda/Makefile. Chapters by the clock use 2 to 22 % of a processor each; the
# lanes last as long as one another and as the Python tests by the clock.
TIMED = {
    "C, by the clock 1": "compute",
    "C, by the clock 2": "mix legacy",
    "C, by the clock 3": "charges compat",
    "C, by the clock 4": "arbiter turns",
    "C, by the clock 5": "copies sweep",
}
C_SUITES = {
    **{suite: f"chapters CHAPTERS={chapters}" for suite, chapters in TIMED.items()},
    "C, the rest": "test-untimed", "C, sanitizers": "sanitize", "C, long": "test-long",
}  # fmt: skip
TOGETHER = "not long and not serial and not alone and not containers"
SERIAL = "serial and not long"
# What a change of Python is tried with first: each function once, and nothing that waits for other processes. Tests of
# pages are a third of what is left, in processor time.
FAST = f"{TOGETHER} and not committed and not browser and not slow"
NOT_FAST = ("agent", "benchmarks", "browser", "containers", "demo", "e2e", "embedded", "fuzz", "gallery", "pages")
# Where the tests marked ``alone`` are, and those marked ``serial``: every process would read all files to find them.
BY_THE_CLOCK = ("tests/benchmarks",)
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
    status: int

    @property
    def good(self) -> bool:
        return self.status in {0, NO_TESTS}

    @property
    def may_be_the_crowd(self) -> bool:
        return self.status == FAILURES and bool(self.passed) and 0 < (self.failed or 0) <= FEW


def pytest_suite(suite: str, marks: str, *arguments: str) -> list[Row]:
    """Run pytest; return one row, and a second one for a repeat of a few failures."""
    with tempfile.TemporaryDirectory() as directory:
        options = ["-m", marks, "-o", f"cache_dir={directory}"]
        rows = [pytest_row(suite, Path(directory), *options, *arguments)]
        if rows[0].may_be_the_crowd:
            print(f"\n{suite}: what failed is asked once more, alone\n", flush=True)
            rows.append(pytest_row(f"{suite}{AGAIN}", Path(directory), *options, "--last-failed"))
    return rows


def pytest_row(suite: str, directory: Path, *options: str) -> Row:
    begun, report = time.monotonic(), directory / "report.xml"
    command = [sys.executable, "-m", "pytest", "-q", f"--junit-xml={report}", *options]
    status = subprocess.run(command, cwd=ROOT, check=False).returncode
    return Row(suite, *counts(report), time.monotonic() - begun, status)


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
    begun = time.monotonic()
    target = C_SUITES[suite.removesuffix(AGAIN)].split(" ", 1)
    command = ["make", "--no-print-directory", "-C", "libvcuda", *target]
    stdout = subprocess.PIPE if beside_others else None
    stderr = subprocess.STDOUT if beside_others else None
    done = subprocess.run(command, cwd=ROOT, check=False, text=True, stdout=stdout, stderr=stderr)
    print(done.stdout or "", end="", flush=True)
    return [Row(suite, None, None, None, time.monotonic() - begun, done.returncode)]


def beside(*lanes: Sequence[Callable[[], list[Row]]]) -> list[Row]:
    """Run all lanes at once, each lane in order; return the rows in the order given."""

    def driven(lane: Sequence[Callable[[], list[Row]]]) -> list[Row]:
        return [row for suite in lane for row in suite()]

    with ThreadPoolExecutor(len(lanes)) as threads:
        return [row for rows in threads.map(driven, lanes) for row in rows]


def c_suites_again(rows: list[Row]) -> list[Row]:
    """Repeat failed suites as a whole: they measure, and other work may have disturbed them."""
    failed = [row.suite for row in rows if row.suite in C_SUITES and not row.good]
    return [row for suite in failed for row in c_suite(f"{suite}{AGAIN}")]


def table(rows: list[Row]) -> str:
    lines = [f"{'suite':<26}{'passed':>8}{'failed':>8}{'skipped':>9}{'seconds':>9}"]
    for row in rows:
        numbers = "".join(
            f"{'–' if count is None else count:>{width}}"
            for count, width in ((row.passed, 8), (row.failed, 8), (row.skipped, 9))
        )
        lines.append(f"{row.suite:<26}{numbers}{row.seconds:>9.1f}  {'ok' if row.good else 'FAILED'}")
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
    if arguments.fast:
        without = [f"--ignore=tests/{name}" for name in NOT_FAST]
        rows = pytest_suite("Python, fast", FAST, "--once", *without, "-n", "2", *STEALING, *extra)
    elif arguments.long:
        rows = [
            *c_suite("C, long"),
            *pytest_suite("Python, long", "long", "--timeout=3600", *extra),
            *pytest_suite("Python, containers", "containers", *(extra or ["tests/containers"])),
        ]
    else:
        rows = [
            *beside(
                *([partial(c_suite, suite, beside_others=True)] for suite in TIMED),
                [lambda: pytest_suite("Python, by the clock", "alone and not long", "-n", "2", *(extra or BY_THE_CLOCK))],
            ),
            *beside(
                [lambda: c_suite("C, the rest", beside_others=True)],
                [lambda: pytest_suite("Python", TOGETHER, "-n", PROCESSES, *STEALING, *extra)],
            ),
            *beside(
                [lambda: c_suite("C, sanitizers", beside_others=True)],
                [
                    lambda: pytest_suite(
                        "Python, platforms", SERIAL, "-n", PLATFORMS, *BY_FILES, *(extra or ON_PLATFORMS)
                    )
                ],
            ),
        ]
    rows += c_suites_again(rows)
    print(f"\n{table(rows)}")
    return 0 if is_good(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
