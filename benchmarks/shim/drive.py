"""Commands for the programs of ``programs``, and what a limited one got while it ran."""

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from benchmarks.shim.pages import Claim
from benchmarks.shim.processes import Process
from benchmarks.shim.sampling import Course, Spread, rate, rates, watch, within

# The first import of PyTorch from a cold disk, and several at once.
IMPORT_SECONDS = 180.0
WARM_SECONDS = 150.0
SPARE_SECONDS = 60.0


def imported(programs: Iterable[Process]) -> None:
    """Wait until each has imported PyTorch."""
    for program in programs:
        program.wait("imported", IMPORT_SECONDS)


def warm(program: Process, seconds: float = WARM_SECONDS) -> None:
    program.say("warm")
    program.wait("ready", seconds)


def run_alone(program: Process, seconds: float) -> float:
    """Iterations a second while nothing else runs, the last batches included."""
    program.say(f"run {seconds}")
    ran = program.wait("ran", seconds + SPARE_SECONDS)
    return float(ran["iterations"] / ran["seconds"])


def profile_alone(program: Process, seconds: float) -> float:
    """The share of time in which a kernel of it ran, in percent, by the profiler."""
    program.say(f"profile {seconds}")
    return float(program.wait("profiled", seconds + SPARE_SECONDS)["share_percent"])


@dataclass(frozen=True)
class Got:
    """What one tenant got: its page's course, and its own iterations a second over the same time."""

    course: Course
    rate: float
    rates: Spread


def run_together(
    programs: Mapping[str, Process], claims: Mapping[str, Claim], seconds: float, settle: float
) -> dict[str, Got]:
    """Run all at once; measured for ``seconds``, ``settle`` seconds after the first row. Bare ones have no claim."""
    for program in programs.values():
        program.say(f"run {settle + seconds + 0.5}")
    started = next(iter(programs.values()))
    started.wait(seconds=settle + SPARE_SECONDS)
    time.sleep(settle)
    courses = watch({name: claims[name] for name in programs if name in claims}, seconds)
    for program in programs.values():
        program.wait("ran", seconds + SPARE_SECONDS)
    return {name: got(program, courses[name]) for name, program in programs.items() if name in courses}


def got(program: Process, course: Course) -> Got:
    rows = within(program.answers(), course.begin, course.end)
    return Got(course, rate(rows, "iterations"), Spread.of(rates(rows, "iterations")))
