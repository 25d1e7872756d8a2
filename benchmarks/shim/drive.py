"""Commands for the programs of ``programs``, and what a limited one got while it ran."""

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from benchmarks.shim.pages import Claim
from benchmarks.shim.processes import Process
from benchmarks.shim.sampling import Course, Spread, rate, rates, watch

# The first import of PyTorch from a cold disk, and several at once.
IMPORT_SECONDS = 180.0
WARM_SECONDS = 150.0
# A tenant that waits for its turn for longer hangs, and must not cost the part its time.
SPARE_SECONDS = 20.0


def imported(programs: Iterable[Process]) -> None:
    """Wait until each has imported PyTorch."""
    for program in programs:
        program.wait("imported", IMPORT_SECONDS)


def warm(program: Process, seconds: float = WARM_SECONDS) -> None:
    program.say("warm")
    program.wait("ready", seconds)


def warm_all(programs: Iterable[Process]) -> None:
    """All at the same time."""
    waiting = list(programs)
    for program in waiting:
        program.say("warm")
    for program in waiting:
        program.wait("ready", WARM_SECONDS)


@dataclass(frozen=True)
class Ran:
    """Iterations a second, and the seconds of processor time that one took, all threads of the program together."""

    rate: float
    cpu_seconds: float


def run_alone(program: Process, seconds: float) -> float:
    """Iterations a second while nothing else runs, the last batches included."""
    return run_for(program, seconds).rate


def run_for(program: Process, seconds: float) -> Ran:
    program.say(f"run {seconds}")
    ran = program.wait("ran", seconds + SPARE_SECONDS)
    return Ran(ran["iterations"] / ran["seconds"], ran["cpu_seconds"] / ran["iterations"])


def profile_alone(program: Process, seconds: float) -> float:
    """The share of time in which a kernel of it ran, in percent, by the profiler."""
    program.say(f"profile {seconds}")
    return float(program.wait("profiled", seconds + SPARE_SECONDS)["share_percent"])


@dataclass(frozen=True)
class Got:
    """What one tenant got: its page's course where it has a claim, and its iterations a second over the same time."""

    course: Course | None
    rate: float
    rates: Spread

    @property
    def share(self) -> float:
        return self.course.share if self.course else 0.0

    @property
    def sd(self) -> float:
        return self.course.spread.sd if self.course else 0.0

    def figures(self) -> dict[str, object]:
        """For the raw results."""
        windows = [window.share for window in self.course.windows] if self.course else []
        return {"share": self.share, "windows": windows, "rate": self.rate, "rate sd": self.rates.sd}


def run_together(
    programs: Mapping[str, Process], claims: Mapping[str, Claim], seconds: float, settle: float
) -> dict[str, Got]:
    """Run all at once; measured for ``seconds``, ``settle`` seconds after the first row. Bare ones have no claim."""
    for program in programs.values():
        program.say(f"run {settle + seconds + 0.5}")
    started = next(iter(programs.values()))
    started.wait(seconds=settle + SPARE_SECONDS)
    time.sleep(settle)
    begin = time.monotonic()
    courses = watch({name: claims[name] for name in programs if name in claims}, seconds)
    end = time.monotonic()
    for program in programs.values():
        program.wait("ran", seconds + SPARE_SECONDS)
    return {name: got(program, courses.get(name), begin, end) for name, program in programs.items()}


def got(program: Process, course: Course | None, begin: float, end: float) -> Got:
    rows = [row for row in program.answers() if "iterations" in row]
    found = rates(rows, "iterations", begin, end)
    return Got(course, rate(rows, "iterations", begin, end), Spread.of(found))
