"""A memory limit: every way to allocate, racing processes, and the programs' view. NVML gives the use."""

import os
import random
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from benchmarks.shim.pages import Claim
from benchmarks.shim.part import Part
from benchmarks.shim.processes import Process
from benchmarks.shim.report import Report
from benchmarks.shim.sampling import Spread
from benchmarks.shim.stage import BUILD, Stage

MIB = 1 << 20
LIMIT_MIB = 4096
WAYS = ("none", "plain", "async", "managed", "vmm", "graph", "stack", "context", "pitch", "array", "module", "mixed")
# A bare process continues to twice the limit: the way works, and only the limit stops the other process.
MOST_MIB = 8192
RACERS = ((4, 4096), (8, 6144))
RACE_SECONDS = 8.0
BENCH = BUILD / "tests" / "bench_memory"
# Allocating by a module's variables compiles PTX.
WAY_SECONDS = 60.0
# enum vcuda_accounting.
ACCOUNTING = ("–", "kernel", "calls")
Row = dict[str, float | int | str | None]


def measure(stage: Stage, report: Report) -> None:
    ways(stage, report)
    race(stage, report)
    views(stage, report)


def ways(stage: Stage, report: Report) -> None:
    rows: list[Row] = []
    for way in WAYS:
        try:
            rows.append(by_way(stage, way))
        except Exception as error:  # noqa: BLE001 - the other ways are measured all the same
            report.add_failure(f"memory by {way}", error)
        stage.clear()
    report.table(
        f"MiB that one process gets under a limit of {LIMIT_MIB:,} MiB, by each way, in ever smaller steps until "
        f"refused (bare: until {MOST_MIB:,}). NVML: of the process; GPU: more in use on the whole GPU than before. "
        "mixed: filled plainly, then every way tried once more (`granted` counts those that got something)",
        rows,
    )
    over = [row for row in rows if isinstance(row["over limit"], int) and row["over limit"] > 0]
    report.note(f"Ways over the limit by NVML: {', '.join(str(row['way']) for row in over) or 'none'} (target none).")


def by_way(stage: Stage, way: str) -> Row:
    bare = hold(stage, None, way)
    claim = stage.claim(100, memory=LIMIT_MIB * MIB)
    held = hold(stage, claim, way)
    real = held["nvml"] if held["nvml"] is not None else held["gpu"]
    return {
        "way": way,
        "bare, NVML": bare["nvml"],
        "held": held["held"],
        "granted": held["calls"],
        "page": held["page"],
        "accounted by": held["accounting"],
        "NVML": held["nvml"],
        "GPU": held["gpu"],
        "over limit": max(0, int(real or 0) - LIMIT_MIB),
        "refused with": held["error"],
    }


def claim_bytes(claim: Claim) -> tuple[int, int]:
    usage = claim.usage()
    return usage["memory_bytes"], usage["context_bytes"]


def hold(stage: Stage, claim: Claim | None, way: str, more: Mapping[str, str] | None = None) -> Row:
    """Start one process that fills by this way and holds; return its MiB. ``more``: further variables of it."""
    before = stage.nvml.used(stage.gpu.uuid)
    process = stage.start([BENCH, way, str(MOST_MIB)], claim, more=more)
    said = process.wait(seconds=WAY_SECONDS)
    # NVML lags by a moment; the driver frees what a refused call had begun.
    time.sleep(0.1)
    uuid = stage.gpu.uuid
    nvml = stage.nvml.by_process(uuid).get(process.pid)
    accounting = ACCOUNTING[claim.usage()["accounting"]] if claim else None
    found: Row = {
        "accounting": accounting,
        "held": said["held_bytes"] // MIB,
        "calls": said["calls"],
        "error": said["error_name"],
        "nvml": None if nvml is None else -(-nvml // MIB),
        "gpu": -(-(stage.nvml.used(uuid) - before) // MIB),
        "page": round(sum(claim_bytes(claim)) / MIB) if claim else None,
    }
    process.end_input()
    process.finish(30)
    return found


def race(stage: Stage, report: Report) -> None:
    rows: list[Row] = []
    for count, limit_mib in RACERS[:1] if stage.quick else RACERS:
        try:
            rows.append(race_once(stage, count, limit_mib))
        except Exception as error:  # noqa: BLE001 - the other race is run all the same
            report.add_failure(f"{count} racing processes", error)
        stage.clear()
    report.table(
        "Processes of one claim that allocate and free at random as fast as they can; all stopped at random times, and "
        "then NVML's figures summed. MiB",
        rows,
    )


def race_once(stage: Stage, count: int, limit_mib: int) -> Row:
    claim = stage.claim(100, memory=limit_mib * MIB)
    seconds = 1.0 if stage.quick else RACE_SECONDS
    before = stage.nvml.used(stage.gpu.uuid)
    racers = [stage.start([BENCH, "race", str(seed), str(seconds)], claim) for seed in range(1, count + 1)]
    for racer in racers:
        racer.wait("ready")
    for racer in racers:
        racer.say("go")
    readings: list[tuple[int, int]] = []
    chance = random.Random(1)  # noqa: S311 - moments, not secrets
    until = time.monotonic() + seconds - 0.2
    while time.monotonic() < until:
        time.sleep(chance.uniform(0.002, 0.03))
        readings.append(read_stopped(stage, racers, before))
    rows = [racer.finish(30)[-1] for racer in racers]
    most = max(max(of_processes, 0) for of_processes, _ in readings)
    return {
        "processes": count,
        "limit": limit_mib,
        "readings": len(readings),
        "most by NVML": round(most / MIB, 1),
        "most more on the GPU": round(max(of_gpu for _, of_gpu in readings) / MIB, 1),
        "over limit": max(0, -(-most // MIB) - limit_mib),
        "least by NVML": round(min(of_processes for of_processes, _ in readings) / MIB, 1),
        "mean": round(Spread.of(of_processes / MIB for of_processes, _ in readings).mean, 1),
        "granted": sum(row["granted"] for row in rows),
        "refused": sum(row["refused"] for row in rows),
    }


def read_stopped(stage: Stage, racers: list[Process], before: int) -> tuple[int, int]:
    """Return NVML's sum over the processes, and the GPU's additional use, while all of them are stopped.

    A driver reads one process after the other: a block that moved meanwhile would count twice. The simulated one reads
    all at once, under a lock that a stopped process might hold: there nothing is stopped.
    """
    halted = [] if stage.simulated else racers
    for racer in halted:
        racer.stop(signal.SIGSTOP)
    while not all(is_stopped(racer.pid) for racer in halted):
        time.sleep(0.0002)
    by_process = stage.nvml.by_process(stage.gpu.uuid)
    of_gpu = stage.nvml.used(stage.gpu.uuid) - before
    for racer in halted:
        racer.stop(signal.SIGCONT)
    return sum(by_process.get(racer.pid, 0) for racer in racers), of_gpu


def is_stopped(pid: int) -> bool:
    """Return True if every thread is stopped; a process that is gone counts too."""
    try:
        stats = [task / "stat" for task in Path(f"/proc/{pid}/task").iterdir()]
        return all(stat.read_text().rpartition(")")[2].split()[0] in {"T", "Z", "X"} for stat in stats)
    except OSError:
        return not Path(f"/proc/{pid}").exists()


def views(stage: Stage, report: Report) -> None:
    """Return the sizes that programs see under the limit."""
    claim = stage.claim(100, memory=LIMIT_MIB * MIB)
    said = stage.start([BENCH, "views"], claim).finish(30)[-1]
    rows: list[Row] = [{"asked": name, "MiB": value / MIB} for name, value in said.items()]
    query = [
        "nvidia-smi",
        "--query-gpu=memory.total,memory.used",
        "--format=csv,noheader,nounits",
        "-i",
        stage.gpu.uuid,
    ]
    if not stage.simulated:
        environment = {**stage.environment(claim), "PATH": os.environ["PATH"]}
        done = subprocess.run(query, env=environment, capture_output=True, text=True, timeout=30, check=False)
        total, _, used = done.stdout.strip().partition(",")
        rows += [{"asked": "nvidia-smi memory.total", "MiB": total}, {"asked": "nvidia-smi memory.used", "MiB": used}]
    report.table(f"What a process is told under a limit of {LIMIT_MIB:,} MiB (its own context counts as used)", rows)


PART = Part("memory", "real memory under a limit", measure, seconds=1.0)
