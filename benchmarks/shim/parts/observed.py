"""Cost to a program of the agent's observation of its GPU: samples, processes, health."""

import math
import signal
import statistics
import sys

from benchmarks.shim.drive import run_for, wait_for_imports, warm_all
from benchmarks.shim.part import Part
from benchmarks.shim.processes import Process
from benchmarks.shim.report import Report
from benchmarks.shim.sampling import Spread
from benchmarks.shim.stage import BUILD, Stage

ROUNDS, QUICK_ROUNDS = 30, 3
SETTLE_SECONDS = 0.1


def measure(stage: Stage, report: Report) -> None:
    loops = {
        "bare": stage.program(None, "gemm", "--size", "8192"),
        "limit 50 %": stage.program(stage.claim(50), "gemm", "--size", "8192"),
    }
    wait_for_imports(loops.values())
    warm_all(loops.values())
    nvml = ("--nvml", str(BUILD / "sim" / "libnvidia-ml.so.1")) if stage.simulated else ()
    observer = stage.start([sys.executable, "-m", "benchmarks.shim.programs.observer", *nvml])
    observer.wait("observing", 60)
    report.table(
        "GEMM 8192³ in a loop, observed and not, in turn; slower = not observed / observed − 1",
        [compare(stage, report, name, loop, observer) for name, loop in loops.items()],
    )
    observer.say("tell")
    told = observer.wait("told", 120)
    report.table(
        "Milliseconds of one question meanwhile",
        [
            {
                "question": name,
                "asked": len(told[name]),
                "median": statistics.median(told[name]),
                "greatest": max(told[name]),
            }
            for name in ("sample", "listed", "vitals")
        ],
    )


def compare(stage: Stage, report: Report, name: str, loop: Process, observer: Process) -> dict[str, float | str]:
    rates: list[tuple[float, float]] = []
    for number in range(QUICK_ROUNDS if stage.quick else ROUNDS):
        pair = {}
        for observed in (True, False) if number % 2 else (False, True):
            observer.stop(signal.SIGCONT if observed else signal.SIGSTOP)
            run_for(loop, SETTLE_SECONDS)
            pair[observed] = run_for(loop, stage.seconds).rate
        rates.append((pair[False], pair[True]))
    observer.stop(signal.SIGCONT)
    report.raw(f"{name}: not observed, observed", rates)
    slower = Spread.of(100 * (alone / watched - 1) for alone, watched in rates)
    return {
        "loop": name,
        "not observed/s": statistics.median(alone for alone, _ in rates),
        "observed/s": statistics.median(watched for _, watched in rates),
        "slower, % (mean ± its standard error)": f"{slower.mean:+.3f} ± {slower.sd / math.sqrt(slower.count):.3f}",
        "rounds": slower.count,
    }


PART = Part("observed", "a program while the agent looks at its GPU", measure, seconds=1.0, torch=True)
