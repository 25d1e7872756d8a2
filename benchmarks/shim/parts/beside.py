"""Light programs beside heavy ones, and three tenants under each policy: rates against alone, beside plain slicing."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.shim.drive import Got, run_alone, run_together, warm_each
from benchmarks.shim.pages import Claim
from benchmarks.shim.part import Part
from benchmarks.shim.processes import Process
from benchmarks.shim.report import Report
from benchmarks.shim.stage import Stage

SETTLE_SECONDS, ALONE_SECONDS, PLAIN_SECONDS = 0.5, 1.0, 1.5
Row = dict[str, float | int | str | None]
PROGRAMS: Mapping[str, tuple[str, ...]] = {
    "small CNN": ("cnn", "--model", "small"),
    "small CNN of 22 %": ("cnn", "--model", "small", "--need", "22"),
    "small GEMMs": ("gemm", "--size", "1024"),
    "generate": ("generate",),
    "GEMM": ("gemm", "--size", "8192"),
    "decode": ("decode",),
}


@dataclass(frozen=True)
class Case:
    """Tenants A, B, … by program, the guarantee of each, and the expected rate: percent of running alone."""

    kinds: Sequence[str]
    requests: Sequence[int]
    first: float
    total: float


CASES: Mapping[str, Case] = {
    "cnn": Case(("small CNN", "GEMM"), (30, 70), 90, 160),
    # A CNN that needs less than its guarantee on any host: it waits for its data.
    "cnn22": Case(("small CNN of 22 %", "GEMM"), (30, 70), 90, 160),
    # Guaranteed more than it needs where the CNN needs half of the GPU.
    "cnn60": Case(("small CNN", "GEMM"), (60, 40), 90, 160),
    "small": Case(("small GEMMs", "GEMM"), (30, 70), 90, 160),
    "generate": Case(("generate", "GEMM"), (30, 70), 90, 160),
    "heavy": Case(("GEMM", "GEMM"), (30, 70), 0, 98),
    "smalls": Case(("small GEMMs", "small GEMMs"), (50, 50), 0, 150),
}
THREE = ("GEMM", "decode", "GEMM")
# Policy, further limits of each tenant, and the shares that follow from them.
Limits = Mapping[str, int | bool]
POLICIES: Mapping[str, tuple[Sequence[Limits], Sequence[float]]] = {
    "burst": ([{"request": 20}, {"request": 30}, {"request": 50}], (20, 30, 50)),
    "fixed": ([{"request": 20}, {"request": 30}, {"request": 50}], (20, 30, 50)),
    "fair": ([{"request": 0}] * 3, (33.3, 33.3, 33.3)),
    "weighted": ([{"request": 0, "weight": 2}, {"request": 0, "weight": 3}, {"request": 0, "weight": 5}], (20, 30, 50)),
    "average": ([{"request": 33, "parts": 3}] * 3, (33.3, 33.3, 33.3)),
    # The first two may use no more than they are guaranteed: the best-effort one gets the rest.
    "preempt": (
        [{"percent": 20, "request": 20}, {"percent": 30, "request": 30}, {"request": 0, "best_effort": True}],
        (20, 30, 50),
    ),
}


@dataclass(frozen=True)
class Scene:
    """Resident programs of every tenant, limited and bare; and the rates of each kind alone and bare."""

    stage: Stage
    report: Report
    claims: Mapping[str, Claim]
    limited: Mapping[tuple[str, str], Process]
    bare: Mapping[tuple[str, str], Process]
    alone: dict[str, float]

    def run(self, processes: Mapping[tuple[str, str], Process], kinds: Sequence[str], seconds: float) -> list[Got]:
        """Run these kinds at once, the first as tenant A; with their pages if they are limited."""
        chosen = {tenant: processes[tenant, kind] for tenant, kind in zip("ABC", kinds, strict=False)}
        claims = self.claims if processes is self.limited else {}
        return list(run_together(chosen, claims, seconds, SETTLE_SECONDS).values())

    def percents(self, kinds: Sequence[str], got: Sequence[Got]) -> list[float]:
        """Return each tenant's rate in percent of the same program alone and bare."""
        return [100 * one.rate / self.alone[kind] for kind, one in zip(kinds, got, strict=True)]


def measure(stage: Stage, report: Report) -> None:
    cases = {name: case for name, case in CASES.items() if stage.is_chosen(name)}
    policies = {name: each for name, each in POLICIES.items() if stage.is_chosen("policies") or stage.names(name)}
    groups = [case.kinds for case in cases.values()] + ([THREE] if policies else [])
    scene = make_scene(stage, report, sorted({pair for kinds in groups for pair in zip("ABC", kinds, strict=False)}))
    plain: dict[str, list[float]] = {}
    for name, kinds in {**{name: case.kinds for name, case in cases.items()}, "three": THREE}.items():
        try:
            if kinds in groups:
                plain[name] = scene.percents(kinds, scene.run(scene.bare, kinds, PLAIN_SECONDS))
        except Exception as error:  # noqa: BLE001 - the other cases are measured all the same
            report.add_failure(f"{name}, plain", error)
    report.raw("plain slicing, % of alone", plain)
    if stage.arbiter() is None:
        report.note("No arbiter in this build: each tenant follows its own limit while the driver slices time.")
    report_cases(scene, cases, plain)
    report_policies(scene, policies, plain.get("three", []))


def make_scene(stage: Stage, report: Report, pairs: Sequence[tuple[str, str]]) -> Scene:
    """Start and warm every tenant's programs; measure each kind alone."""
    claims = {tenant: stage.claim(100) for tenant in "ABC"}
    limited = {(tenant, kind): stage.program(claims[tenant], *PROGRAMS[kind]) for tenant, kind in pairs}
    bare = {(tenant, kind): stage.program(None, *PROGRAMS[kind]) for tenant, kind in pairs}
    named = {f"{tenant}, {kind}": process for (tenant, kind), process in limited.items()}
    named |= {f"{tenant}, {kind}, bare": process for (tenant, kind), process in bare.items()}
    for name, error in warm_each(named).items():
        report.add_failure(name, error)
    alone: dict[str, float] = {}
    for (_, kind), process in bare.items():
        if kind not in alone and process.alive:
            alone[kind] = run_alone(process, ALONE_SECONDS)
    report.raw("alone, iterations/s", alone)
    return Scene(stage, report, claims, limited, bare, alone)


def report_cases(scene: Scene, cases: Mapping[str, Case], plain: Mapping[str, Sequence[float]]) -> None:
    rows: list[Row] = []
    for name, case in cases.items():
        try:
            rows.append(share(scene, name, case, plain.get(name, [])))
        except Exception as error:  # noqa: BLE001 - the other cases are measured all the same
            scene.report.add_failure(name, error)
    scene.report.table(
        "Two tenants, policy burst, limits of 100. Rate: iterations a second against the same program alone and bare, "
        "%. Plain: both bare, by the driver's time slices. Wanted: of the first one's rate, and of the total",
        rows,
    )


def share(scene: Scene, name: str, case: Case, plain: Sequence[float]) -> Row:
    """Run one case under the arbiter."""
    for tenant, request in zip("ABC", case.requests, strict=False):
        scene.claims[tenant].limit(scene.stage.gpu.uuid, 100, request=request, policy="burst")
    got = scene.run(scene.limited, case.kinds, scene.stage.seconds)
    rates = scene.percents(case.kinds, got)
    scene.report.raw(name, {"tenants": [one.figures() for one in got], "% of alone": rates})
    met = rates[0] >= case.first and sum(rates) >= case.total
    first = f"first ≥ {case.first:.0f}, " if case.first else ""
    return {
        "programs": " + ".join(case.kinds),
        "guaranteed": "/".join(str(request) for request in case.requests),
        "rate": join(rates),
        "total": sum(rates),
        "page": join([one.share for one in got]),
        "plain": join(plain),
        "plain total": sum(plain) if plain else None,
        "wanted": f"{first}total ≥ {case.total:.0f}",
        "met": "yes" if met else "NO",
    }


def report_policies(scene: Scene, policies: Mapping[str, tuple[Sequence[Limits], Sequence[float]]],
                    plain: Sequence[float]) -> None:  # fmt: skip
    rows: list[Row] = []
    for policy, (limits, wanted) in policies.items():
        try:
            for tenant, each in zip("ABC", limits, strict=True):
                others = {name: value for name, value in each.items() if name != "percent"}
                percent = int(each.get("percent", 100))
                scene.claims[tenant].limit(scene.stage.gpu.uuid, percent, policy=policy, **others)
            got = scene.run(scene.limited, THREE, scene.stage.seconds)
            rows.append(make_policy_row(scene, policy, got, wanted))
        except Exception as error:  # noqa: BLE001 - the other policies are measured all the same
            scene.report.add_failure(policy, error)
    title = f"Three tenants ({', '.join(THREE)}) under each policy; shares by the page, %, rates in % of alone"
    scene.report.table(f"{title}; plain: {join(plain)}, total {sum(plain):.1f}", rows)


def make_policy_row(scene: Scene, policy: str, got: Sequence[Got], wanted: Sequence[float]) -> Row:
    rates = scene.percents(THREE, got)
    scene.report.raw(f"policy {policy}", {"tenants": [one.figures() for one in got], "% of alone": rates})
    errors = [one.share - share for one, share in zip(got, wanted, strict=True)]
    return {
        "policy": policy,
        "wanted": "/".join(f"{share:g}" for share in wanted),
        "got": join([one.share for one in got]),
        "sd": join([one.sd for one in got]),
        "greatest error": f"{max(errors, key=abs):+.2f}",
        "rate": join(rates),
        "total": sum(rates),
    }


def join(values: Sequence[float]) -> str:
    """Format some figures for one cell."""
    return " / ".join(f"{value:.1f}" for value in values) or "–"


PART = Part("beside", "light programs beside heavy ones, and three tenants by policy", measure, seconds=2.5, torch=True)
