"""Commands for the programs of ``programs``, and figures of limited ones."""

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from benchmarks.shim.gaps import Sampler
from benchmarks.shim.pages import Claim
from benchmarks.shim.processes import Process, ProcessFailed
from benchmarks.shim.sampling import Course, Spread, rate, rates, watch

# The first import of PyTorch from a cold disk, and several at once.
IMPORT_SECONDS = 180.0
WARM_SECONDS = 150.0
# A tenant that waits longer for its turn hangs, and must not cost the part its time.
SPARE_SECONDS = 20.0
# The library's watcher has charged everything that is finished by then.
RETIRED_SECONDS = 0.15


def wait_for_imports(programs: Iterable[Process]) -> None:
    """Wait until each has imported PyTorch."""
    for program in programs:
        program.wait("imported", IMPORT_SECONDS)


def warm(program: Process, seconds: float = WARM_SECONDS) -> None:
    program.say("warm")
    program.wait("ready", seconds)


def warm_all(programs: Iterable[Process]) -> None:
    """Warm all at the same time."""
    waiting = list(programs)
    for program in waiting:
        program.say("warm")
    for program in waiting:
        program.wait("ready", WARM_SECONDS)


@dataclass(frozen=True)
class Ran:
    """Iterations a second, and processor seconds per iteration, all threads of the program together."""

    rate: float
    cpu_seconds: float


def warm_each(programs: Mapping[str, Process]) -> dict[str, Exception]:
    """Import all at the same time, then warm one after the other; return what failed, by name. The others can be used.

    A limited program learns how long its kernels take while it is warmed: nothing else may have the GPU meanwhile.
    """
    failed: dict[str, Exception] = {}
    for event in ("imported", "ready"):
        for name, program in programs.items():
            try:
                if event == "imported":
                    wait_for_imports([program])
                elif name not in failed:
                    warm(program)
            except ProcessFailed as error:
                failed[name] = error
    return failed


def run_alone(program: Process, seconds: float) -> float:
    """Return iterations a second while nothing else runs, the last batches included."""
    return run_for(program, seconds).rate


def run_for(program: Process, seconds: float) -> Ran:
    program.say(f"run {seconds}")
    ran = program.wait("ran", seconds + SPARE_SECONDS)
    return Ran(ran["iterations"] / ran["seconds"], ran["cpu_seconds"] / ran["iterations"])


def profile_alone(program: Process, seconds: float) -> float:
    """Return the share of time in which one of its kernels ran, in percent, by the profiler."""
    program.say(f"profile {seconds}")
    return float(program.wait("profiled", seconds + SPARE_SECONDS)["share_percent"])


@dataclass(frozen=True)
class Profiled:
    """Figures of the profiler for one program, and of its claim's page for the same time."""

    share: float
    kernel_ns: float
    """GPU time of an iteration; longer than without the profiler only where kernels wait for one another."""
    page: float | None


def profile_judged(program: Process, claim: Claim | None, seconds: float) -> Profiled | None:
    """Profile the program; None if the profiler saw no kernel of it."""
    with Sampler({"it": claim} if claim else {}) as sampler:
        program.say(f"profile {seconds}")
        seen = program.wait("profiled", seconds + SPARE_SECONDS)
    if not seen["kernels"] or not seen["iterations"]:
        return None
    page = sampler.share("it", seen["window_begin"], seen["window_end"]) if claim else None
    return Profiled(seen["share_percent"], seen["kernel_ns"] / seen["iterations"], page)


@dataclass(frozen=True)
class Charged:
    """A whole run, from its first launch to its last kernel: iterations a second, and percent charged meanwhile.

    Both are of exactly the same iterations, while a window cuts some at its ends.
    """

    rate: float
    share: float


@dataclass(frozen=True)
class Got:
    """Result of one tenant: its page's course if it has a claim, and its iterations a second over the same time."""

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
        """Return the raw results."""
        windows = [window.share for window in self.course.windows] if self.course else []
        return {"share": self.share, "windows": windows, "rate": self.rate, "rate sd": self.rates.sd}


def run_together(
    programs: Mapping[str, Process], claims: Mapping[str, Claim], seconds: float, settle: float
) -> dict[str, Got]:
    """Run all at once; measure for ``seconds``, from ``settle`` seconds after the first row.

    Bare ones have no claim.
    """
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


def run_charged(program: Process, claim: Claim, seconds: float) -> tuple[Got, Charged]:
    """Run one limited program; return what it got in a window, and what the whole run was charged."""
    before = claim.usage()["gpu_time_ns"]
    window = run_together({"it": program}, {"it": claim}, seconds, 0.0)["it"]
    ran = next(row for row in program.answers() if row.get("event") == "ran")
    time.sleep(RETIRED_SECONDS)
    spent = claim.usage()["gpu_time_ns"] - before
    return window, Charged(ran["iterations"] / ran["seconds"], spent / ran["seconds"] / 1e7)


def got(program: Process, course: Course | None, begin: float, end: float) -> Got:
    rows = [row for row in program.answers() if "iterations" in row and "at" in row]
    found = rates(rows, "iterations", begin, end)
    return Got(course, rate(rows, "iterations", begin, end), Spread.of(found))
