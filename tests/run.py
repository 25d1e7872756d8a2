"""``make test`` and ``make test-long``: every suite in order, each to its end, then one table of what happened.

    python -m tests.run [--long] [pytest's arguments…]

The sanitizers' builds and the Python tests run beside each other: they wait more than they compute. Tests that measure
time or start a whole platform are marked ``serial`` and come after them, two files at a time.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree as ET

ROOT = Path(__file__).resolve().parent.parent
NO_TESTS = 5  # pytest's status when a selection is empty
# More than the cores that there are at least: many tests wait for agents more than they compute. Platforms do compute.
PROCESSES, PLATFORMS = "3", "2"


@dataclass(frozen=True)
class Row:
    """One suite's outcome; a count is None where the suite has none."""

    suite: str
    passed: int | None
    failed: int | None
    skipped: int | None
    seconds: float
    good: bool


def pytest_suite(suite: str, marks: str, *arguments: str) -> Row:
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-m", marks, f"--junit-xml={report}", *arguments]
        status = subprocess.run(command, cwd=ROOT, check=False).returncode
        passed, failed, skipped = counts(report)
    return Row(suite, passed, failed, skipped, time.monotonic() - begun, status in {0, NO_TESTS})


def counts(report: Path) -> tuple[int, int, int]:
    """Passed, failed and skipped from a JUnit report; nothing where pytest did not get so far."""
    if not report.exists():
        return 0, 1, 0
    total = failed = skipped = 0
    for suite in ET.parse(report).iter("testsuite"):  # noqa: S314 - pytest wrote it just now
        total += int(suite.get("tests", 0))
        failed += int(suite.get("failures", 0)) + int(suite.get("errors", 0))
        skipped += int(suite.get("skipped", 0))
    return total - failed - skipped, failed, skipped


def c_suite(suite: str, target: str) -> Row:
    begun = time.monotonic()
    status = subprocess.run(
        ["make", "--no-print-directory", "-C", "libvcuda", target], cwd=ROOT, check=False
    ).returncode
    return Row(suite, None, None, None, time.monotonic() - begun, status == 0)


def beside(*suites: Callable[[], Row]) -> list[Row]:
    """All at once; their rows in the order given."""
    with ThreadPoolExecutor(len(suites)) as threads:
        return [one.result() for one in [threads.submit(suite) for suite in suites]]


def table(rows: list[Row]) -> str:
    lines = [f"{'suite':<24}{'passed':>8}{'failed':>8}{'skipped':>9}{'seconds':>9}"]
    for row in rows:
        numbers = "".join(
            f"{'–' if count is None else count:>{width}}"
            for count, width in ((row.passed, 8), (row.failed, 8), (row.skipped, 9))
        )
        lines.append(f"{row.suite:<24}{numbers}{row.seconds:>9.1f}  {'ok' if row.good else 'FAILED'}")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.run", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--long", action="store_true", help="the long counts only")
    arguments, extra = parser.parse_known_args()
    if arguments.long:
        rows = [
            c_suite("C, long", "test-long"),
            pytest_suite("Python, long", "long", "--timeout=3600", *extra),
        ]
    else:
        rows = [
            c_suite("C, simulated driver", "test"),
            *beside(
                lambda: c_suite("C, sanitizers", "sanitize"),
                lambda: pytest_suite("Python", "not long and not serial", "-n", PROCESSES, *extra),
            ),
            pytest_suite("Python, platforms", "serial and not long", "-n", PLATFORMS, "--dist", "loadfile", *extra),
        ]
    print(f"\n{table(rows)}")
    return 0 if all(row.good for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
