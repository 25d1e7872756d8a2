"""A client of MPS at its claim's memory limit: every way to allocate, and PyTorch."""

import subprocess

from benchmarks.shim.mps_groups import Groups
from benchmarks.shim.part import Part
from benchmarks.shim.parts.memory import LIMIT_MIB, MIB, WAYS, Row, hold
from benchmarks.shim.processes import ProcessFailed
from benchmarks.shim.report import Report
from benchmarks.shim.stage import Stage

PERCENT = 50


def measure(stage: Stage, report: Report) -> None:
    """Measure every way; what fails is reported and the others are measured all the same."""
    groups = Groups(stage)
    try:
        groups.start("first")
        ways(stage, report, groups)
        if not stage.simulated:
            pytorch(stage, report, groups)
    finally:
        stage.clear()
        groups.close()


def ways(stage: Stage, report: Report, groups: Groups) -> None:
    # A client that stays: the server, which needs memory of its own, is there before anything is measured.
    stays = stage.claim(PERCENT, backend="mps")
    stage.gpuload(stays, "--kernel-us", "0", more=groups.variables("first", PERCENT)).wait(seconds=30)
    rows: list[Row] = []
    for way in WAYS[:3] if stage.quick else WAYS:
        try:
            claim = stage.claim(PERCENT, memory=LIMIT_MIB * MIB, backend="mps")
            held = hold(stage, claim, way, groups.variables("first", PERCENT))
        except Exception as error:  # noqa: BLE001 - the other ways are measured all the same
            report.add_failure(f"memory by {way}", error)
            continue
        real = held["nvml"] if held["nvml"] is not None else held["gpu"]
        rows.append({
            "way": way, "held": held["held"], "granted": held["calls"], "page": held["page"],
            "accounted by": held["accounting"], "NVML": held["nvml"], "GPU": held["gpu"],
            "over limit": max(0, int(real or 0) - LIMIT_MIB), "refused with": held["error"],
        })  # fmt: skip
    report.table(
        f"MiB that one client gets under a limit of {LIMIT_MIB:,} MiB, by each way, in ever smaller steps until "
        "refused. NVML: of the process; GPU: more in use on the whole GPU than before",
        rows,
    )


def pytorch(stage: Stage, report: Report, groups: Groups) -> None:
    claim = stage.claim(PERCENT, memory=LIMIT_MIB * MIB, backend="mps")
    program = stage.fill(claim, groups.variables("first", PERCENT))
    try:
        full = program.wait("full", 90)
        report.raw("nvidia-smi with a full client", list_processes())
        row = {
            "limit MiB": LIMIT_MIB,
            "shown MiB": full["total_mib"],
            "allocated MiB": full["held_mib"],
            "charged MiB": (claim.usage()["memory_bytes"] + claim.usage()["context_bytes"]) // MIB,
            "accounting": claim.usage()["accounting"],
            "error": str(full["error"]),
        }
        report.table("PyTorch fills its memory as a client of MPS", [row])
        program.say("free")
        program.wait("freed", 30)
    except ProcessFailed as error:
        report.add_failure("PyTorch", error)


def list_processes() -> str:
    """Return what nvidia-smi prints."""
    try:
        return subprocess.run(["nvidia-smi"], capture_output=True, text=True, timeout=30, check=False).stdout[-4000:]
    except OSError as error:
        return str(error)


PART = Part("mps-memory", "MPS: memory under a limit, by every way", measure, seconds=1.0)
