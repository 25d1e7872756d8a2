"""Two and three tenants on one GPU: shares, total throughput, and waits of a bursty one beside a busy one."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.shim.drive import Got, run_alone, run_together, wait_for_imports, warm_all
from benchmarks.shim.pages import Claim
from benchmarks.shim.part import Part
from benchmarks.shim.processes import Process
from benchmarks.shim.report import Report
from benchmarks.shim.sampling import Spread
from benchmarks.shim.stage import Stage

TENANTS = ("A", "B", "C")
SHARES = ((30, 70), (50, 50), (20, 30, 50))
PROGRAMS: Mapping[str, tuple[str, ...]] = {
    "GEMM": ("gemm", "--size", "8192"),
    "graphs": ("decode",),
    "small kernels": ("gemm", "--size", "1024"),
}
# The program of each tenant.
WORKLOADS: Mapping[str, tuple[str, str, str]] = {
    "GEMM": ("GEMM", "GEMM", "GEMM"),
    "graphs": ("graphs", "graphs", "graphs"),
    "small kernels": ("small kernels", "small kernels", "small kernels"),
    "mixed": ("GEMM", "graphs", "small kernels"),
}
SETTLE_SECONDS, ALONE_SECONDS, PLAIN_SECONDS = 0.5, 1.5, 2.0
BURST_SECONDS = 5.0
Row = dict[str, float | int | str | None]
Processes = Mapping[tuple[str, str], Process]


@dataclass(frozen=True)
class Scene:
    """Resident programs of every tenant and kind, limited and bare; and the rates of each kind alone and bare."""

    stage: Stage
    report: Report
    claims: Mapping[str, Claim]
    limited: Processes
    bare: Processes
    alone: dict[str, float]

    @classmethod
    def of(cls, stage: Stage, report: Report) -> "Scene":
        claims = {tenant: stage.claim(100) for tenant in TENANTS}
        limited = {(t, kind): stage.program(claims[t], *how) for t in TENANTS for kind, how in PROGRAMS.items()}
        bare = {(t, kind): stage.program(None, *how) for t in TENANTS for kind, how in PROGRAMS.items()}
        return cls(stage, report, claims, limited, bare, {})


def measure(stage: Stage, report: Report) -> None:
    scene = Scene.of(stage, report)
    bursts = {"turns": stage.program(scene.claims["B"], "burst"), "plain": stage.program(None, "burst")}
    everyone = [*scene.limited.values(), *scene.bare.values(), *bursts.values()]
    wait_for_imports(everyone)
    warm_all(everyone)
    scene.alone.update({kind: run_alone(scene.bare["A", kind], ALONE_SECONDS) for kind in PROGRAMS})
    report.raw("alone, iterations/s", scene.alone)
    plain = {(workload, count): plain_slicing(scene, workload, count) for workload in WORKLOADS for count in (2, 3)}
    if stage.arbiter() is None:
        report.note("No arbiter in this build: each tenant follows its own limit while the driver slices time.")
    time.sleep(SETTLE_SECONDS)
    rows: list[Row] = []
    for shares in SHARES:
        for workload in WORKLOADS:
            try:
                rows.append(shared(scene, workload, shares, plain[workload, len(shares)]))
            except Exception as error:  # noqa: BLE001 - the others are measured all the same
                report.add_failure(f"{workload} {shares}", error)
    report.table(
        "Tenants that all want the GPU (policy burst, guaranteed shares as given). Got: GPU time by the page, %, ± sd "
        "over 0.5 s. Rate: each tenant's iterations against the same program alone and bare, %. Total: their sum; "
        "plain: the same without the library, by the driver's time slices (targets: error ≤ 1, sd ≤ 1, total ≥ 98)",
        rows,
    )
    bursty(scene, bursts)


def kinds_of(workload: str, count: int) -> dict[str, str]:
    """Return the kind of program of each tenant."""
    return dict(zip(TENANTS, WORKLOADS[workload][:count], strict=False))


def plain_slicing(scene: Scene, workload: str, count: int) -> dict[str, float]:
    """Return each tenant's rate in percent of running alone, without the library."""
    kinds = kinds_of(workload, count)
    got = run_together({t: scene.bare[t, kind] for t, kind in kinds.items()}, {}, PLAIN_SECONDS, SETTLE_SECONDS)
    found = {t: 100 * got[t].rate / scene.alone[kind] for t, kind in kinds.items()}
    scene.report.raw(f"plain slicing, {workload}, {count} tenants, % of alone", found)
    return found


def shared(scene: Scene, workload: str, shares: Sequence[int], plain: Mapping[str, float]) -> Row:
    kinds = kinds_of(workload, len(shares))
    for tenant, share in zip(TENANTS, shares, strict=False):
        scene.claims[tenant].limit(scene.stage.gpu.uuid, 100, request=share, policy="burst")
    programs = {t: scene.limited[t, kind] for t, kind in kinds.items()}
    got = run_together(programs, scene.claims, scene.stage.seconds, SETTLE_SECONDS)
    wanted = "/".join(str(share) for share in shares)
    scene.report.raw(f"{workload} {wanted}", {tenant: each.figures() for tenant, each in got.items()})
    rates = [100 * got[t].rate / scene.alone[kind] for t, kind in kinds.items()]
    errors = [got[t].share - share for t, share in zip(kinds, shares, strict=True)]
    return {
        "workload": " + ".join(kinds.values()) if workload == "mixed" else workload,
        "wanted": wanted,
        "got": " / ".join(f"{got[t].share:.2f}" for t in kinds),
        "greatest error": f"{max(errors, key=abs):+.2f}",
        "sd": " / ".join(f"{got[t].sd:.2f}" for t in kinds),
        "rate": " / ".join(f"{rate:.1f}" for rate in rates),
        "total": f"{sum(rates):.1f}",
        "plain": " / ".join(f"{rate:.1f}" for rate in plain.values()),
        "plain total": f"{sum(plain.values()):.1f}",
    }


def bursty(scene: Scene, bursts: Mapping[str, Process]) -> None:
    """Run a burst of about 60 ms every 200 ms, alone and beside a GEMM that never stops."""
    for tenant in ("A", "B"):
        scene.claims[tenant].limit(scene.stage.gpu.uuid, 100, request=50, policy="burst")
    limited, bare = scene.limited["A", "GEMM"], scene.bare["A", "GEMM"]
    rows = []
    for name, kind, other in (("alone", "plain", None), ("plain slicing", "plain", bare), ("turns", "turns", limited)):
        beside = {"A": other} if other else {}
        got = run_together({"B": bursts[kind], **beside}, {}, BURST_SECONDS, SETTLE_SECONDS)
        rows.append(burst_row(name, bursts[kind], got.get("A"), scene.alone["GEMM"]))
    scene.report.table("A bursty tenant (a third of the GPU) beside one that never stops, 50/50", rows)


def burst_row(name: str, process: Process, other: Got | None, alone: float) -> Row:
    latencies = sorted(row["latency_ms"] for row in process.answers() if "latency_ms" in row)[1:]
    spread = Spread.of(latencies)
    return {
        "bursty tenant": name,
        "bursts": spread.count,
        "burst takes, ms (median)": latencies[len(latencies) // 2] if latencies else None,
        "least – greatest": f"{spread.least:.1f} – {spread.most:.1f}",
        "the busy one's rate, % of alone": 100 * other.rate / alone if other else None,
    }


PART = Part("tenants", "two and three tenants on one GPU", measure, seconds=4.0, torch=True)
