"""MPS as a back end beside turns, credit alone and the driver's time slices: shares and totals in one run."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from benchmarks.shim.drive import Got, run_alone, run_together, warm_all, warm_each
from benchmarks.shim.mps_groups import Groups
from benchmarks.shim.pages import Claim
from benchmarks.shim.part import Part
from benchmarks.shim.processes import Process, ProcessFailed
from benchmarks.shim.report import Cell, Report
from benchmarks.shim.stage import Stage

PROGRAMS: Mapping[str, tuple[str, ...]] = {
    "GEMM": ("gemm", "--size", "8192"),
    "graphs": ("decode",),
    "CNN": ("cnn", "--model", "small"),
    "small": ("gemm", "--size", "1024"),
}
TWO, THREE = (30, 70), (20, 30, 50)
# With two servers, B is a tenant of its own, whose server takes turns with the first.
ONE_SERVER, TWO_SERVERS = "mps", "mps, two servers"
MODES = ("plain", "native", "turns", ONE_SERVER)
SETTLE_SECONDS, ALONE_SECONDS = 0.5, 1.0
# Nothing new is begun after this time: the machine is lent.
MOST_SECONDS = 210.0
ROW_SECONDS = 5.0


class Key(NamedTuple):
    """One program: under no claim (`plain`), a claim of its own (`claimed`), or as a client of a tenant's server."""

    owner: str
    tenant: str
    kind: str
    part: int = 0


@dataclass(frozen=True)
class Case:
    """Programs of tenants A, B, … that run at once, and the limit of each in percent."""

    kinds: Sequence[str]
    shares: Sequence[int]
    modes: Sequence[str] = MODES

    @property
    def name(self) -> str:
        """The programs and limits in words."""
        return f"{' + '.join(self.kinds)}, {'/'.join(str(share) for share in self.shares)}"

    def keys(self, mode: str) -> dict[str, Key]:
        """Return the programs of this case in this mode, by tenant."""
        found = {}
        for tenant, kind, share in zip("ABC", self.kinds, self.shares, strict=False):
            if mode in (ONE_SERVER, TWO_SERVERS):
                server = "second" if mode == TWO_SERVERS and tenant == "B" else "first"
                found[tenant] = Key(server, tenant, kind, share)
            else:
                found[tenant] = Key("plain" if mode == "plain" else "claimed", tenant, kind)
        return found


CASES = (
    Case(("GEMM", "GEMM"), TWO, (*MODES, TWO_SERVERS)),
    Case(("GEMM", "GEMM", "GEMM"), THREE),
    Case(("graphs", "graphs"), TWO),
    Case(("CNN", "GEMM"), TWO),
    Case(("small", "small"), TWO, (*MODES, TWO_SERVERS)),
    Case(("graphs", "GEMM"), TWO),
    Case(("small", "GEMM"), TWO),
)


class Scene:
    """The programs of all cases in every mode, warmed, each under a claim of its own."""

    def __init__(self, stage: Stage, report: Report, groups: Groups, cases: Sequence[Case]) -> None:
        self.stage, self.report, self.groups, self.cases = stage, report, groups, cases
        groups.start("first")
        groups.start("second")
        self.claims: dict[Key, Claim] = {}
        self.programs: dict[Key, Process] = {}
        for key in dict.fromkeys(key for case in cases for mode in case.modes for key in case.keys(mode).values()):
            if key.owner != "plain":
                self.claims[key] = stage.claim(key.part or 100, backend="mps" if key.part else "native")
            more = groups.variables(key.owner, key.part) if key.part else None
            self.programs[key] = stage.program(self.claims.get(key), *PROGRAMS[key.kind], more=more)
        print(f"{len(self.programs)} programs started", flush=True)

    def warm(self) -> None:
        """Warm the bare programs at once, then each under a claim by itself: it learns how long its kernels take."""
        names = {"/".join(str(word) for word in key): program for key, program in self.programs.items()}
        bare = {name: program for name, program in names.items() if name.startswith("plain/")}
        try:
            for program in bare.values():
                program.wait("imported", 180)
            warm_all(bare.values())
        except ProcessFailed as error:
            self.report.add_failure("warming plain programs", error)
        limited = {name: program for name, program in names.items() if name not in bare}
        for name, failure in warm_each(limited).items():
            self.report.add_failure(f"warming {name}", failure)

    def choose(self, mode: str, case: Case) -> dict[str, Key]:
        """Return the programs of one row by tenant, with their claims' limits set."""
        keys = case.keys(mode)
        backend = mode if mode in ("turns", "native") else "mps"
        shares = {key: share for key, share in zip(keys.values(), case.shares, strict=True) if key in self.claims}
        for key in self.claims if mode != "plain" else ():
            # Also of the idle ones: one claim without turns, and nobody on the GPU has any.
            share = shares.get(key, 0)
            limit = 100 if mode == "turns" else share or 100
            self.claims[key].limit(self.stage.gpu.uuid, limit, request=share, backend=backend)
        return keys


def measure(stage: Stage, report: Report) -> None:
    """Measure everything; what fails is reported and the rest goes on."""
    begun = time.monotonic()
    groups = Groups(stage)
    try:
        scene = Scene(stage, report, groups, CASES[:2] if stage.quick else CASES)
        scene.warm()
        print(f"warm after {time.monotonic() - begun:.0f} s", flush=True)
        kinds = dict.fromkeys(kind for case in scene.cases for kind in case.kinds)
        alone = {kind: run_alone(scene.programs[Key("plain", "A", kind)], ALONE_SECONDS) for kind in kinds}
        report.raw("alone, iterations/s", alone)
        stage.arbiter()
        time.sleep(SETTLE_SECONDS)
        rows = run_cases(scene, alone, begun + MOST_SECONDS)
        report.table(
            "Claims that want the GPU at once. Rate: iterations against the same program alone and bare, %; page: GPU "
            f"time by the claim's page, %; ± sd over 0.5 s, of {stage.seconds:.1f} s. Turns: limits of 100, and the "
            "figures as guarantees",
            rows,
        )
        clients(scene, alone, begun + MOST_SECONDS)
    finally:
        report.raw("logs", groups.logs())
        stage.clear()
        groups.close()


def run_cases(scene: Scene, alone: Mapping[str, float], until: float) -> list[dict[str, Cell]]:
    rows: list[dict[str, Cell]] = []
    for case in scene.cases:
        for mode in case.modes:
            if time.monotonic() + scene.stage.seconds + ROW_SECONDS > until:
                scene.report.note(f"{case.name}, {mode}: left out, as the time is over")
            elif (row := share(scene, mode, case, alone)) is not None:
                print(" | ".join(str(cell) for cell in row.values()), flush=True)
                rows.append(row)
    return rows


def share(scene: Scene, mode: str, case: Case, alone: Mapping[str, float]) -> dict[str, Cell] | None:
    """Run the programs at once in this mode; return a row."""
    keys = scene.choose(mode, case)
    programs = {tenant: scene.programs[key] for tenant, key in keys.items()}
    claims = {tenant: scene.claims[key] for tenant, key in keys.items() if key in scene.claims}
    try:
        got: Mapping[str, Got] = run_together(programs, claims, scene.stage.seconds, SETTLE_SECONDS)
    except ProcessFailed as error:
        scene.report.add_failure(f"{case.name} {mode}", error)
        return None
    scene.report.raw(f"{case.name}, {mode}", {tenant: each.figures() for tenant, each in got.items()})
    rates = [100 * got[tenant].rate / alone[key.kind] for tenant, key in keys.items()]
    sds = [100 * got[tenant].rates.sd / alone[key.kind] for tenant, key in keys.items()]
    pages = [f"{got[tenant].share:.1f} ± {got[tenant].sd:.1f}" if got[tenant].course else "–" for tenant in keys]
    return {
        "programs": case.name,
        "mode": mode,
        "rate": " / ".join(f"{one:.1f} ± {sd:.1f}" for one, sd in zip(rates, sds, strict=True)),
        "total": f"{sum(rates):.1f}",
        "page": " / ".join(pages),
    }


def clients(scene: Scene, alone: Mapping[str, float], until: float) -> None:
    """Run clients alone, with the limit that they started with: what the part of the multiprocessors gives."""
    rows: list[dict[str, Cell]] = []
    for key in (one for one in scene.programs if one.owner == "first" and one.tenant in "AB"):
        if time.monotonic() + ROW_SECONDS > until:
            return scene.report.note("The other clients alone: left out, as the time is over")
        scene.claims[key].limit(scene.stage.gpu.uuid, key.part, backend="mps")
        try:
            found = run_together({"it": scene.programs[key]}, {"it": scene.claims[key]}, 1.0, 0.3)["it"]
        except ProcessFailed as error:
            scene.report.add_failure(f"{key} alone", error)
            continue
        rate = f"{100 * found.rate / alone[key.kind]:.1f}"
        rows.append({"program": key.kind, "part %": key.part, "rate": rate, "page": f"{found.share:.2f}"})
    scene.report.table("One client alone, with a limit as large as its part: its rate, % of alone without MPS", rows)
    return None


PART = Part("mps", "MPS beside turns and time slices: shares and totals", measure, 2.5, torch=True)
