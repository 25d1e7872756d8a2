"""PyTorch under limits: a training loop, torch.compile with CUDA graphs, forked data workers, the three allocators."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.shim.drive import profile_alone, run_alone, run_together, wait_for_imports, warm_all
from benchmarks.shim.pages import Claim
from benchmarks.shim.part import Part
from benchmarks.shim.processes import Process
from benchmarks.shim.report import Report
from benchmarks.shim.stage import Stage

MIB = 1 << 20
LIMIT_MIB = 4096
SETTLE_SECONDS, BARE_SECONDS, PROFILE_SECONDS = 0.5, 2.0, 1.0
# Name, program, its options, the limits at which it is measured.
PROGRAMS: Sequence[tuple[str, tuple[str, ...], Sequence[int]]] = (
    ("training, transformer", ("train",), (25, 50, 75)),
    ("torch.compile, reduce-overhead", ("train", "--compile"), (50,)),
    ("DataLoader, 4 forked workers", ("loader",), (50,)),
)
EXPANDABLE, ASYNC = "expandable_segments:True", "backend:cudaMallocAsync"
# Allocator, its setting, MiB a tensor.
FILLS = (
    ("default", "", 2), ("default", "", 64), ("default", "", 500),
    ("expandable_segments", EXPANDABLE, 64), ("cudaMallocAsync", ASYNC, 64),
)  # fmt: skip
FILL_SECONDS = 180.0
Row = dict[str, float | int | str | None]


def measure(stage: Stage, report: Report) -> None:
    try:
        allocators(stage, report)
    except Exception as error:  # noqa: BLE001 - the training is measured all the same
        report.add_failure("allocators", error)
    stage.clear()
    claims = {name: stage.claim(100, memory=LIMIT_MIB * MIB) for name, _, _ in PROGRAMS}
    pairs = {name: (stage.program(None, *how), stage.program(claims[name], *how)) for name, how, _ in PROGRAMS}
    wait_for_imports([one for pair in pairs.values() for one in pair])
    rows: list[Row] = []
    for name, _, limits in PROGRAMS:
        try:
            # One after the other: if compiling fails, the others have been measured.
            warm_all(pairs[name])
            rows += Held(stage, report, name, *pairs[name], claims[name]).rows(limits)
        except Exception as error:  # noqa: BLE001 - the other programs are measured all the same
            report.add_failure(name, error)
        for process in pairs[name]:
            process.terminate()
    report.table(
        f"Training under a limit of GPU time and of {LIMIT_MIB:,} MiB. Page: share of GPU time as charged, % ± sd over "
        "0.5 s. Kernels: by the profiler, in a run of its own. Rate: steps a second against the same program bare. A "
        "program that leaves the GPU idle does more than its limit's share of its rate",
        rows,
    )


@dataclass(frozen=True)
class Held:
    """One program, bare and under its claim."""

    stage: Stage
    report: Report
    name: str
    bare: Process
    limited: Process
    claim: Claim

    def rows(self, limits: Sequence[int]) -> list[Row]:
        """Return one row for the bare program, and one per limit."""
        whole = run_alone(self.bare, BARE_SECONDS)
        busy = profile_alone(self.bare, PROFILE_SECONDS)
        losses = [row["loss"] for row in self.limited.rows() if row.get("event") == "loss"]
        self.report.raw(self.name, {"bare, steps/s": whole, "bare, GPU busy %": busy, "losses": losses})
        learnt = " → ".join(f"{loss:.2f}" for loss in losses) or None
        head: Row = {"program": self.name, "limit": "bare", "page": None, "kernels": busy, "steps/s": whole}
        bare: Row = {**head, "rate, %": 100.0, "NVML, MiB": used(self.stage, self.bare), "loss": None}
        return [bare, *(self.at(limit, whole, learnt) for limit in limits)]

    def at(self, limit: int, whole: float, learnt: str | None) -> Row:
        self.claim.limit(self.stage.gpu.uuid, limit, memory=LIMIT_MIB * MIB)
        time.sleep(SETTLE_SECONDS)
        got = run_together({"it": self.limited}, {"it": self.claim}, self.stage.seconds, SETTLE_SECONDS)["it"]
        self.report.raw(f"{self.name} at {limit}", got.figures())
        return {
            "program": self.name,
            "limit": limit,
            "page": f"{got.share:.2f} ± {got.sd:.2f}",
            "kernels": profile_alone(self.limited, PROFILE_SECONDS),
            "steps/s": got.rate,
            "rate, %": 100 * got.rate / whole,
            "NVML, MiB": used(self.stage, self.limited),
            "loss": learnt,
        }


def used(stage: Stage, process: Process) -> int | None:
    found = stage.nvml.by_process(stage.gpu.uuid).get(process.pid)
    return None if found is None else -(-found // MIB)


def allocators(stage: Stage, report: Report) -> None:
    """Fill a claim of its own with each allocator, all at the same time."""
    filling = []
    for name, setting, step in FILLS:
        claim = stage.claim(100, memory=LIMIT_MIB * MIB)
        more = {"PYTORCH_CUDA_ALLOC_CONF": setting, "PYTORCH_ALLOC_CONF": setting} if setting else {}
        most = str(3 * LIMIT_MIB)
        filling.append((name, step, claim, stage.fill(claim, more, "--step", str(step), "--most", most)))
    rows = [fill_claim(stage, report, f"{name}, {step}", claim, process) for name, step, claim, process in filling]
    report.table(f"PyTorch fills a claim of {LIMIT_MIB:,} MiB until refused; MiB. Then it frees all and goes on", rows)


def fill_claim(stage: Stage, report: Report, name: str, claim: Claim, process: Process) -> Row:
    full: Mapping[str, object] = process.wait("full", FILL_SECONDS)
    nvml = used(stage, process)
    page = claim.usage()
    process.say("free")
    freed = process.wait("freed", 60)
    report.raw(f"{name} MiB", dict(full))
    return {
        "allocator, MiB a tensor": name,
        "told total": str(full["total_mib"]),
        "tensors": str(full["held_mib"]),
        "page": (page["memory_bytes"] + page["context_bytes"]) // MIB,
        "NVML": nvml,
        "over limit": max(0, (nvml or 0) - LIMIT_MIB),
        "refused with": str(full["error"]),
        "goes on": "yes" if freed["sum_is_right"] else "WRONG RESULT",
    }


PART = Part("pytorch", "PyTorch under limits of GPU time and memory", measure, seconds=3.0, torch=True)
