"""One PyTorch tenant at a limit: by the page, by the profiler's kernel times, and by its rate beside a bare process."""

import time
from collections.abc import Mapping, Sequence

from benchmarks.shim.drive import profile_alone, run_alone, run_together, wait_for_imports, warm
from benchmarks.shim.pages import Claim
from benchmarks.shim.part import Part
from benchmarks.shim.parts.share import LIMITS, SETTLE_SECONDS, summary
from benchmarks.shim.processes import Process
from benchmarks.shim.report import Report
from benchmarks.shim.stage import Stage

Row = dict[str, float | int | str | None]
PROFILE_SECONDS = 0.8
BARE_SECONDS = 1.5
# Name, program, its options.
WORKLOADS: Sequence[tuple[str, str, tuple[str, ...]]] = (
    ("GEMM 8192³", "gemm", ("--size", "8192")),
    ("GEMM 4096³", "gemm", ("--size", "4096")),
    ("stream of small GEMMs (1024³)", "gemm", ("--size", "1024")),
    ("transformer decode, CUDA graphs", "decode", ()),
)


def measure(stage: Stage, report: Report) -> None:
    chosen = WORKLOADS[:1] if stage.quick else WORKLOADS
    claims = {name: stage.claim(100) for name, _, _ in chosen}
    limited = {name: stage.program(claims[name], program, *how) for name, program, how in chosen}
    bare = {name: stage.program(None, program, *how) for name, program, how in chosen}
    wait_for_imports([*limited.values(), *bare.values()])
    rows: list[Row] = []
    wanted: list[Row] = []
    unlimited: list[Row] = []
    for name, claim in claims.items():
        try:
            found, free = workload(stage, report, name, (limited[name], bare[name]), claim)
            rows += found
            # A program that does not keep the GPU busy for so long has no share to miss.
            wanted += [each for each in found if int(str(each["limit"])) < float(str(free["GPU busy when bare, %"]))]
            unlimited.append(free)
        except Exception as error:  # noqa: BLE001 - the other workloads are measured all the same
            report.add_failure(name, error)
        limited[name].terminate()
        bare[name].terminate()
    report.table(
        "Share of GPU time, %, one PyTorch tenant, the limit moved while it runs; ± sd over windows of 0.5 s. Page: as "
        "charged by libvcuda. Kernels: by the profiler's kernel times, in a run of its own. Rate: iterations a second "
        "against a bare process before and after (kernels of a power-bound program run faster when its duty drops, so "
        "the rate may lie above the limit)",
        rows,
    )
    summary(report, wanted)
    report.table("The same programs without a limit", unlimited)


def workload(
    stage: Stage, report: Report, name: str, programs: tuple[Process, Process], claim: Claim
) -> tuple[list[Row], Row]:
    """Run the limited program and the bare one: a row per limit, and one without a limit."""
    limited, bare = programs
    for program in (bare, limited):
        warm(program)
    whole = [run_alone(bare, BARE_SECONDS)]
    free = run_alone(limited, BARE_SECONDS)
    found = [at_limit(stage, limited, claim, limit) for limit in LIMITS]
    kernels = profile_alone(bare, PROFILE_SECONDS)
    whole.append(run_alone(bare, BARE_SECONDS))
    report.raw(name, {"bare": whole, "unlimited": free, "bare kernels": kernels, "limits": found})
    rate = sum(whole) / len(whole)
    alone: Row = {"load": name, "bare/s": rate, "unlimited claim/s": free, "GPU busy when bare, %": kernels}
    return [row(name, limit, each, rate) for limit, each in zip(LIMITS, found, strict=True)], alone


def at_limit(stage: Stage, program: Process, claim: Claim, limit: int) -> dict[str, float]:
    claim.limit(stage.gpu.uuid, limit)
    time.sleep(SETTLE_SECONDS)
    got = run_together({"it": program}, {"it": claim}, stage.seconds, SETTLE_SECONDS)["it"]
    kernels = profile_alone(program, PROFILE_SECONDS)
    return {"page": got.share, "page_sd": got.sd, "kernels": kernels, "rate": got.rate}


def row(name: str, limit: int, found: Mapping[str, float], whole: float) -> Row:
    percent = 100 * found["rate"] / whole if whole else 0.0
    return {
        "load": name,
        "limit": limit,
        "page": f"{found['page']:.2f} ± {found['page_sd']:.2f}",
        "page − limit": f"{found['page'] - limit:+.2f}",
        "kernels": found["kernels"],
        "rate, % of bare": f"{percent:.2f}",
        "rate / limit": f"{percent / limit:.3f}",
    }


PART = Part("share-torch", "one PyTorch tenant's share of GPU time at limits", measure, seconds=2.5, torch=True)
