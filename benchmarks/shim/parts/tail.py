"""Latency of a service's requests beside a flood that takes the rest; and two decode servers, 40 and 60."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.shim.drive import Got, profile_judged, run_alone, run_together, warm_each
from benchmarks.shim.pages import Claim
from benchmarks.shim.part import Part
from benchmarks.shim.processes import Process
from benchmarks.shim.report import Report
from benchmarks.shim.stage import Stage

SETTLE_SECONDS, LEAD_SECONDS = 0.3, 0.5
ALONE_SECONDS, SERVER_SECONDS, SERVERS_SECONDS, PROFILE_SECONDS = 1.0, 1.5, 3.0, 0.5
FLOODS: Mapping[str, tuple[str, ...]] = {
    "training": ("cnn", "--model", "large"),
    "GEMM 4096³": ("gemm", "--size", "4096"),
}
# Guarantees of the service and of the flood, by policy.
POLICIES: Mapping[str, tuple[dict[str, int | bool], dict[str, int | bool]]] = {
    "burst": ({"request": 50}, {"request": 50}),
    "preempt": ({"request": 50}, {"request": 0, "best_effort": True}),
}
SHARES = {"C": 40, "D": 60}
Row = dict[str, float | int | str | None]


@dataclass(frozen=True)
class Latencies:
    """Latencies of a run's requests, ms from arrival; requests a second; ms of service for each."""

    p50: float
    p99: float
    most: float
    per_second: float
    service: float

    @classmethod
    def of(cls, process: Process) -> "Latencies":
        """Read the process's last run, its first moments left out."""
        kept = read_requests(process)
        ordered = sorted(row["latency_ms"] for row in kept)
        p50, p99 = (ordered[round(part * (len(ordered) - 1))] for part in (0.5, 0.99))
        spent = kept[-1]["at"] - kept[0]["at"]
        service = sum(row["service_ms"] for row in kept) / len(kept)
        return cls(p50, p99, ordered[-1], (len(kept) - 1) / spent, service)


def read_requests(process: Process) -> list[dict[str, Any]]:
    """Return the requests of the process's last run in the order of their arrival, its first moments left out."""
    found = [row for row in process.answers() if row.get("event") == "request"]
    return [row for row in found if row["at"] > found[0]["at"] + LEAD_SECONDS]


@dataclass(frozen=True)
class Scene:
    """The service, its neighbours and the two servers, by name, limited and bare."""

    stage: Stage
    report: Report
    claims: Mapping[str, Claim]
    limited: Mapping[str, Process]
    bare: Mapping[str, Process]


def measure(stage: Stage, report: Report) -> None:
    # `--only` names a flood by its first word.
    floods = {name: command for name, command in FLOODS.items() if stage.is_chosen(name.split(maxsplit=1)[0])}
    servers = list(SHARES) if stage.is_chosen("servers") else []
    commands = ({"service": ("service",)} if floods else {}) | floods | dict.fromkeys(servers, ("paged",))
    scene = make_scene(stage, report, commands)
    if stage.arbiter() is None:
        report.note("No arbiter in this build: each tenant follows its own limit while the driver slices time.")
    if floods:
        try:
            report_service(scene, list(floods))
        except Exception as error:  # noqa: BLE001 - the servers are measured all the same
            report.add_failure("service", error)
    if servers:
        try:
            report_servers(scene)
        except Exception as error:  # noqa: BLE001 - what was measured is kept
            report.add_failure("servers", error)


def make_scene(stage: Stage, report: Report, commands: Mapping[str, Sequence[str]]) -> Scene:
    """Start and warm every program, limited and bare."""
    claims = {name: stage.claim(100) for name in commands}
    limited = {name: stage.program(claims[name], *command) for name, command in commands.items()}
    bare = {name: stage.program(None, *command) for name, command in commands.items()}
    for name, error in warm_each(limited | {f"{name}, bare": process for name, process in bare.items()}).items():
        report.add_failure(name, error)
    return Scene(stage, report, claims, limited, bare)


def report_service(scene: Scene, floods: Sequence[str]) -> None:
    """Measure the service alone, then beside each flood."""
    alone = run_service(scene, scene.bare, None)[0]
    under, got = run_service(scene, scene.limited, None)
    rows = [make_row("nobody", "bare", alone, alone), make_row("nobody", "limit 100", alone, under, got=got)]
    for flood in floods:
        try:
            rows += run_beside(scene, flood, alone)
        except Exception as error:  # noqa: BLE001 - the other floods are measured all the same
            scene.report.add_failure(flood, error)
    scene.report.table(
        "Requests of a decode service, Poisson arrivals, the same in every run; milliseconds from a request's arrival. "
        "Plain: no library. Burst: 50 % guaranteed to each. Preempt: 50 % to the service, the flood best-effort. "
        "Harvest: the flood's rate against its rate alone times the part of the time in which the service, alone, "
        "computes. Wanted under preempt: p99 at most 5 % longer than alone, harvest 80 %",
        rows,
    )


def run_beside(scene: Scene, flood: str, alone: Latencies) -> list[Row]:
    """Run the service beside one flood: plain, then under each policy."""
    rate = run_alone(scene.bare[flood], ALONE_SECONDS)
    spare = rate * (1 - alone.per_second * alone.service / 1e3)
    scene.report.raw(f"{flood}, alone/s and what the service leaves of it", [rate, spare])
    found, got = run_service(scene, scene.bare, flood)
    rows = [make_row(flood, "plain", alone, found, got=got, part=harvest(got, spare))]
    for policy, limits in POLICIES.items():
        for name, limit in zip(("service", flood), limits, strict=True):
            scene.claims[name].limit(scene.stage.gpu.uuid, 100, policy=policy, **limit)
        found, got = run_service(scene, scene.limited, flood)
        rows.append(make_row(flood, policy, alone, found, got=got, part=harvest(got, spare)))
    return rows


def harvest(got: Mapping[str, Got] | None, spare: float) -> str:
    """Format the share that the flood gets."""
    flood = next((one for name, one in (got or {}).items() if name != "service"), None)
    return f"{100 * flood.rate / spare:.1f}" if flood and spare > 0 else "–"


def run_service(
    scene: Scene, processes: Mapping[str, Process], flood: str | None
) -> tuple[Latencies, Mapping[str, Got]]:
    chosen = {name: processes[name] for name in ("service", *([flood] if flood else []))}
    claims = scene.claims if processes is scene.limited else {}
    got = run_together(chosen, claims, scene.stage.seconds, SETTLE_SECONDS)
    return Latencies.of(processes["service"]), got


def make_row(
    flood: str, how: str, alone: Latencies, found: Latencies, *, got: Mapping[str, Got] | None = None, part: str = ""
) -> Row:
    """Make a row of the service's table; ``part`` is the harvest."""
    longer = 100 * (found.p99 / alone.p99 - 1)
    met = "yes" if longer <= 5 and part not in {"", "–"} and float(part) >= 80 else "NO"
    return {
        "beside": flood,
        "how": how,
        "p50, ms": found.p50,
        "p99": found.p99,
        "longest": found.most,
        "p99 against alone, %": f"{longer:+.1f}",
        "requests/s": found.per_second,
        "each keeps the server, ms": found.service,
        "harvest, %": part or None,
        "page": " / ".join(f"{one.share:.1f}" for one in (got or {}).values() if one.course) or None,
        "met": met if how == "preempt" else None,
    }


@dataclass(frozen=True)
class Served:
    """One server's run: tokens a second, steps a second, milliseconds a step, its share by the page."""

    tokens: float
    steps: float
    p50: float
    p99: float
    page: float | None

    @classmethod
    def of(cls, process: Process, got: Got) -> "Served":
        ran = next(row for row in reversed(process.answers()) if row.get("event") == "ran")
        each = ran["tokens"] / ran["iterations"]
        return cls(got.rate * each, got.rate, ran["p50_ms"], ran["p99_ms"], got.share if got.course else None)


def report_servers(scene: Scene) -> None:
    """Run two servers that always have sequences to continue."""
    names = list(SHARES)
    alone = {name: run_servers(scene, scene.bare, [name])[name] for name in names}
    under = {name: run_servers(scene, scene.limited, [name])[name] for name in names}
    plain = run_servers(scene, scene.bare, names)
    for name, share in SHARES.items():
        scene.claims[name].limit(scene.stage.gpu.uuid, 100, request=share, policy="burst")
    turns = run_servers(scene, scene.limited, names)
    seen = {name: profile_judged(scene.bare[name], None, PROFILE_SECONDS) for name in names}
    rows: list[Row] = []
    for how, served in {"alone, bare": alone, "alone, limit 100": under, "plain": plain, "burst": turns}.items():
        for name, one in served.items():
            profiled = seen[name]
            rows.append({
                "how": how, "guaranteed": SHARES[name] if how == "burst" else None, "tokens/s": one.tokens,
                "% of alone": 100 * one.tokens / alone[name].tokens if alone[name].tokens else None,
                "kernels, % of the time": profiled.kernel_ns * one.steps / 1e7 if profiled else None,
                "page": one.page, "a step, ms: p50": one.p50, "p99": one.p99,
            })  # fmt: skip
    scene.report.table(
        "Two decode servers with continuous batching and a paged cache, 40 and 60 % guaranteed. Kernels: by the "
        "profiler's time of a step's kernels, bare, times steps a second",
        rows,
    )


def run_servers(scene: Scene, processes: Mapping[str, Process], names: Sequence[str]) -> dict[str, Served]:
    claims = scene.claims if processes is scene.limited else {}
    seconds = SERVER_SECONDS if len(names) == 1 else SERVERS_SECONDS
    got = run_together({name: processes[name] for name in names}, claims, seconds, SETTLE_SECONDS)
    return {name: Served.of(processes[name], one) for name, one in got.items()}


PART = Part("tail", "a service's latencies beside a flood, and two decode servers", measure, seconds=8.0, torch=True)
