"""An NCCL all-reduce on two GPUs, bare and under limits on both."""

import socket

from benchmarks.shim.drive import IMPORT_SECONDS, WARM_SECONDS, wait_for_imports
from benchmarks.shim.pages import Claim
from benchmarks.shim.part import Part
from benchmarks.shim.processes import Process
from benchmarks.shim.report import Report
from benchmarks.shim.sampling import Spread
from benchmarks.shim.stage import Stage

RANKS, TENSOR_MIB, ITERATIONS, ROUNDS = 2, 256, 100, 5
LIMITS = (100, 75, 50)
MEMORY = 8 << 30
Row = dict[str, float | int | str | None]


def measure(stage: Stage, report: Report) -> None:
    claim = stage.claim(100, gpus=RANKS, memory=MEMORY)
    bare, limited = ranks(stage, None), ranks(stage, claim)
    wait_for_imports([*bare, *limited])
    right = [start_ranks(pair) for pair in (bare, limited)]
    rows = [row("bare", round_rates(bare, ROUNDS), right[0], None)]
    for limit in LIMITS:
        for gpu in stage.gpus[:RANKS]:
            claim.limit(gpu.uuid, limit, memory=MEMORY)
        before = [claim.usage(index)["gpu_time_ns"] for index in range(RANKS)]
        bandwidths = round_rates(limited, ROUNDS)
        after = [claim.usage(index)["gpu_time_ns"] for index in range(RANKS)]
        charged = [(end - begin) / 1e9 for begin, end in zip(before, after, strict=True)]
        report.raw(f"limit {limit}", {"GB/s": bandwidths, "charged, s": charged})
        rows.append(row(f"limit {limit} % on both GPUs", bandwidths, right[1], charged))
    rows.append(row("bare again", round_rates(bare, ROUNDS), right[0], None))
    report.table(
        f"All-reduce of {TENSOR_MIB} MiB over {RANKS} GPUs, {ROUNDS} times {ITERATIONS}; bytes / time (of two "
        "ranks: the bus bandwidth). NCCL's kernels are charged but never held back: a rank that waits stops the other",
        rows,
    )


def ranks(stage: Stage, claim: Claim | None) -> list[Process]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    options = ("--ranks", str(RANKS), "--port", port, "--mib", str(TENSOR_MIB))
    return [stage.program(claim, "allreduce", "--rank", str(rank), *options, gpus=RANKS) for rank in range(RANKS)]


def start_ranks(pair: list[Process]) -> bool:
    for process in pair:
        process.say("warm")
    right = [bool(process.wait("summed", IMPORT_SECONDS)["right"]) for process in pair]
    for process in pair:
        process.wait("ready", WARM_SECONDS)
    return all(right)


def round_rates(pair: list[Process], rounds: int) -> list[float]:
    """Return GB/s of each round."""
    found = []
    for _ in range(rounds):
        for process in pair:
            process.say(f"count {ITERATIONS}")
        seconds = max(float(process.wait("counted", 120)["seconds"]) for process in pair)
        found.append(TENSOR_MIB * (1 << 20) * ITERATIONS / seconds / 1e9)
    return found


def row(name: str, bandwidths: list[float], right: bool, charged: list[float] | None) -> Row:
    spread = Spread.of(bandwidths)
    return {
        "all-reduce": name,
        "GB/s": f"{spread.mean:.1f} ± {spread.sd:.1f}",
        "sum is right": "yes" if right else "NO",
        "GPU time charged, s": " / ".join(f"{seconds:.2f}" for seconds in charged) if charged else None,
    }


PART = Part("nccl", "NCCL all-reduce on two GPUs under limits", measure, seconds=1.0, torch=True, gpus=2)
