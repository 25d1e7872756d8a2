"""MPS as a back end beside turns and the driver's time slices: shares, totals, memory, and live changes of a limit."""

import subprocess
import time
from collections.abc import Mapping
from typing import Any

from benchmarks.shim.drive import Got, run_alone, run_together, warm_each
from benchmarks.shim.mps_groups import Groups
from benchmarks.shim.pages import Claim
from benchmarks.shim.part import Part
from benchmarks.shim.processes import Process, ProcessFailed
from benchmarks.shim.report import Cell, Report
from benchmarks.shim.sampling import rate
from benchmarks.shim.stage import Stage

SHARES = {"A": 30, "B": 70}
PROGRAMS: Mapping[str, tuple[str, ...]] = {"GEMM": ("gemm", "--size", "8192"), "small": ("gemm", "--size", "1024")}
WORKLOADS = (("GEMM", "GEMM"), ("small", "small"), ("small", "GEMM"))
# With two servers, B is a tenant of its own, whose server takes turns with the first.
MODES = ("plain", "turns", "native", "MPS, one server", "MPS, two servers")
SETTLE_SECONDS, ALONE_SECONDS = 0.5, 1.5
LIVE: Mapping[int, tuple[int, ...]] = {30: (30, 60, 10, 30), 60: (60, 30, 60, 10)}
LIVE_SECONDS = 1.5
# The window in which a change must show, and how near to the new rate it must be.
STEP_SECONDS, NEAR = 0.1, 0.15
MEMORY_MIB = 4096
Key = tuple[str, str, str]


class Scene:
    """The programs of two tenants in every mode, warmed, each under a claim of its own."""

    def __init__(self, stage: Stage, report: Report, groups: Groups) -> None:
        self.stage, self.report, self.groups = stage, report, groups
        groups.start("first")
        groups.start("second")
        self.claims: dict[Key, Claim] = {}
        self.programs: dict[Key, Process] = {}
        for kind, how in PROGRAMS.items():
            for tenant, percent in SHARES.items():
                self.programs["plain", tenant, kind] = stage.program(None, *how)
                free = "free", tenant, kind
                self.claims[free] = stage.claim(100)
                self.programs[free] = stage.program(self.claims[free], *how)
                self._client("MPS", tenant, kind, percent)
            self._client("second", "B", kind, SHARES["B"])
        self._client("60", "A", "GEMM", 60)

    def _client(self, mode: str, tenant: str, kind: str, percent: int) -> None:
        key = mode, tenant, kind
        self.claims[key] = self.stage.claim(percent, backend="mps")
        more = self.groups.variables("second" if mode == "second" else "first", percent)
        self.programs[key] = self.stage.program(self.claims[key], *PROGRAMS[kind], more=more)

    def limit(self, key: Key, percent: int, **limits: Any) -> None:
        """Set the limit of the claim of one program."""
        self.claims[key].limit(self.stage.gpu.uuid, percent, **limits)

    def chosen(self, mode: str, kinds: tuple[str, str]) -> dict[str, Key]:
        """Return the programs of one row by tenant, with their claims' limits set."""
        names = {"plain": ("plain",) * 2, "turns": ("free",) * 2, "native": ("free",) * 2, MODES[4]: ("MPS", "second")}
        owners = names.get(mode, ("MPS",) * 2)
        keys = {t: (owner, t, kind) for t, owner, kind in zip(SHARES, owners, kinds, strict=True)}
        backend = mode if mode in ("turns", "native") else "mps"
        for key in self.claims if mode != "plain" else ():
            # Also of the idle ones: one claim without turns, and nobody on the GPU has any.
            self.limit(key, 100 if mode == "turns" else SHARES[key[1]], request=SHARES[key[1]], backend=backend)
        return keys


def measure(stage: Stage, report: Report) -> None:
    """Measure everything; what fails is reported and the rest goes on."""
    groups = Groups(stage)
    try:
        scene = Scene(stage, report, groups)
        for key, error in warm_each({"/".join(key): one for key, one in scene.programs.items()}).items():
            report.add_failure(f"warming {key}", error)
        report.raw("nvidia-smi with clients", smi())
        alone = {kind: run_alone(scene.programs["plain", "A", kind], ALONE_SECONDS) for kind in PROGRAMS}
        report.raw("alone, iterations/s", alone)
        for kind in PROGRAMS:
            clients(scene, kind, alone[kind])
        rows: list[dict[str, Cell]] = []
        stage.arbiter()
        time.sleep(SETTLE_SECONDS)
        for kinds in WORKLOADS:
            rows += [row for mode in MODES if (row := shared(scene, mode, kinds, alone)) is not None]
        report.table(
            "Two claims that want the GPU, 30 and 70 %. Rate: iterations against the same program alone and bare, %; "
            "page: GPU time by the claim's page, %, ± sd over 0.5 s",
            rows,
        )
        live(scene, alone["GEMM"])
        memory(scene)
    finally:
        report.raw("logs", groups.logs())
        stage.clear()
        groups.close()


def clients(scene: Scene, kind: str, alone: float) -> None:
    """Run each client alone: the part of the multiprocessors that it started with gives this part of the rate."""
    rows: list[dict[str, Cell]] = []
    for key in (one for one in scene.programs if one[2] == kind and one[0] in ("MPS", "60")):
        percent = 60 if key[0] == "60" else SHARES[key[1]]
        for limit in (100, percent):
            scene.limit(key, limit, backend="mps")
            try:
                found = run_together({"it": scene.programs[key]}, {"it": scene.claims[key]}, scene.stage.seconds, 0.3)
            except ProcessFailed as error:
                scene.report.add_failure(f"{kind} alone with {percent} %", error)
                continue
            row: dict[str, Cell] = {
                "program": kind,
                "part %": percent,
                "limit %": limit,
                "rate": f"{100 * found['it'].rate / alone:.1f}",
            }
            rows.append({**row, "page": f"{found['it'].share:.2f}"})
    scene.report.table(
        "One client alone: its part of the multiprocessors, and its rate against alone without MPS, %", rows
    )


def shared(scene: Scene, mode: str, kinds: tuple[str, str], alone: Mapping[str, float]) -> dict[str, Cell] | None:
    """Run two programs at once in this mode; return a row."""
    keys = scene.chosen(mode, kinds)
    programs = {tenant: scene.programs[key] for tenant, key in keys.items()}
    claims = {tenant: scene.claims[key] for tenant, key in keys.items() if key in scene.claims}
    try:
        got: Mapping[str, Got] = run_together(programs, claims, scene.stage.seconds, SETTLE_SECONDS)
    except ProcessFailed as error:
        scene.report.add_failure(f"{kinds} {mode}", error)
        return None
    scene.report.raw(f"{'+'.join(kinds)}, {mode}", {tenant: each.figures() for tenant, each in got.items()})
    rates = [100 * got[t].rate / alone[kind] for t, kind in zip(SHARES, kinds, strict=True)]
    sds = [100 * got[t].rates.sd / alone[kind] for t, kind in zip(SHARES, kinds, strict=True)]
    pages = [f"{got[t].share:.1f} ± {got[t].sd:.1f}" if got[t].course else "–" for t in SHARES]
    return {
        "programs": " + ".join(kinds),
        "mode": mode,
        "rate A / B": " / ".join(f"{one:.1f} ± {sd:.1f}" for one, sd in zip(rates, sds, strict=True)),
        "total": f"{sum(rates):.1f}",
        "page A / B": " / ".join(pages),
    }


def live(scene: Scene, alone: float) -> None:
    """Change the limit of a running client: below its part the credit limits it, above it nothing can."""
    rows: list[dict[str, Cell]] = []
    for part, limits in LIVE.items():
        key = ("MPS" if part == SHARES["A"] else "60", "A", "GEMM")
        program = scene.programs[key]
        scene.limit(key, limits[0], backend="mps")
        program.say(f"run {len(limits) * LIVE_SECONDS + 1}")
        time.sleep(1.0)
        changes = []
        for limit in limits:
            scene.limit(key, limit, backend="mps")
            changes.append((limit, time.monotonic()))
            time.sleep(LIVE_SECONDS)
        program.wait("ran", 30)
        answers = [row for row in program.answers() if "iterations" in row and "at" in row]
        for limit, at in changes:
            settled = rate(answers, "iterations", at + 0.5, at + LIVE_SECONDS)
            steps = [rate(answers, "iterations", at + n * STEP_SECONDS, at + (n + 1) * STEP_SECONDS) for n in range(10)]
            near = (n for n, one in enumerate(steps) if abs(one - settled) <= NEAR * settled)
            first = next(near, None)
            rows.append(
                {
                    "part %": part,
                    "limit %": limit,
                    "rate": f"{100 * settled / alone:.1f}",
                    "reached after": "–" if first is None else f"≤ {1000 * (first + 1) * STEP_SECONDS:.0f} ms",
                }
            )
    scene.report.table("The limit of a running client changes. Rate: against alone and bare, %", rows)


def memory(scene: Scene) -> None:
    """Fill the memory of a client under its claim's limit."""
    claim = scene.stage.claim(50, memory=MEMORY_MIB << 20, backend="mps")
    program = scene.stage.fill(claim, scene.groups.variables("first", 50))
    try:
        before = scene.stage.nvml.gpus()
        full = program.wait("full", 90)
        scene.report.raw("nvidia-smi with a full client", smi())
        row = {
            "limit MiB": MEMORY_MIB,
            "shown MiB": full["total_mib"],
            "allocated MiB": full["held_mib"],
            "charged MiB": (claim.usage()["memory_bytes"] + claim.usage()["context_bytes"]) >> 20,
            "accounting": claim.usage()["accounting"],
            "error": str(full["error"]),
        }
        scene.report.raw("GPUs before", [str(one) for one in before])
        scene.report.table("PyTorch fills its memory as a client of MPS", [row])
        program.say("free")
        program.wait("freed", 30)
    except ProcessFailed as error:
        scene.report.add_failure("memory", error)


def smi() -> str:
    """Return nvidia-smi's list of processes."""
    command = ["nvidia-smi"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False).stdout[-4000:]
    except OSError as error:
        return str(error)


PART = Part("mps", "MPS beside turns and time slices: shares, memory, live changes", measure, 2.0, torch=True)
