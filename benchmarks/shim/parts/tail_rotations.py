"""Latency of a service's requests beside training under `preempt`, in rows that take turns with rows of it alone.

One row's p99 is made by four or five requests, and two bare rows of one machine differ by a tenth. So every rotation
measures the service bare, alone under the library, and beside training, with the same arrivals; the rows of all
rotations are pooled, and an interval comes from rotations drawn again with replacement.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean, median

from benchmarks.shim.drive import run_alone
from benchmarks.shim.part import Part
from benchmarks.shim.parts.tail import FLOODS, POLICIES, Latencies, Scene, make_scene, read_requests, run_service
from benchmarks.shim.report import Report
from benchmarks.shim.stage import Stage

ROTATIONS, QUICK_ROTATIONS = 12, 2
FLOOD_SECONDS = 1.5
DRAWS = 2000
FLOOD = "training"
BARE, LIMITED, PREEMPT = "bare, alone", "limit 100, alone", "preempt, beside training"
# The latencies of one row, ms.
Row = list[float]


def measure(stage: Stage, report: Report) -> None:
    scene = make_scene(stage, report, {"service": ("service",), FLOOD: FLOODS[FLOOD]})
    if stage.arbiter() is None:
        report.add_failure("preempt", RuntimeError("no arbiter in this build, so no policy is in force"))
        return
    rows: dict[str, list[Row]] = {BARE: [], LIMITED: [], PREEMPT: []}
    harvests = [rotate(scene, rows) for _ in range(QUICK_ROTATIONS if stage.quick else ROTATIONS)]
    report.raw("latencies, ms, by row", rows)
    report.raw("harvests, %", harvests)
    report.table(
        f"Requests of a decode service in {len(harvests)} rotations of three rows, the same Poisson arrivals in each; "
        "ms from a request's arrival, all rotations together. Intervals: 95 % of rotations drawn again. "
        "Wanted under preempt: p99 at most 5 % longer than alone, harvest 80 %",
        [make_row(how, rows) for how in rows],
    )
    report.table("Part of what the service leaves idle that training got, %", [spread(harvests)])


def rotate(scene: Scene, rows: Mapping[str, list[Row]]) -> float:
    """Measure one rotation; return the harvest in percent."""
    rate = run_alone(scene.bare[FLOOD], FLOOD_SECONDS)
    alone = _run(scene, scene.bare, None, rows[BARE])[0]
    for claim in scene.claims.values():
        claim.limit(scene.stage.gpu.uuid, 100)
    _run(scene, scene.limited, None, rows[LIMITED])
    for name, limit in zip(("service", FLOOD), POLICIES["preempt"], strict=True):
        scene.claims[name].limit(scene.stage.gpu.uuid, 100, policy="preempt", **limit)
    _, flood = _run(scene, scene.limited, FLOOD, rows[PREEMPT])
    spare = rate * (1 - alone.per_second * alone.service / 1e3)
    return 100 * flood / spare


def _run(scene: Scene, processes: Mapping[str, object], flood: str | None, rows: list[Row]) -> tuple[Latencies, float]:
    """Run one row; return its latencies and the flood's rate."""
    chosen = scene.limited if processes is scene.limited else scene.bare
    found, got = run_service(scene, chosen, flood)
    rows.append([request["latency_ms"] for request in read_requests(chosen["service"])])
    return found, got[flood].rate if flood else 0.0


def make_row(how: str, rows: Mapping[str, Sequence[Row]]) -> dict[str, float | int | str | None]:
    """Make the row of one setting, against the bare one."""
    pooled = [latency for row in rows[how] for latency in row]
    cells: dict[str, float | int | str | None] = {"how": how, "requests": len(pooled)}
    for name, figure in FIGURES.items():
        cells[name] = figure(pooled)
        if how != BARE:
            least, most = interval(rows[how], rows[BARE], figure)
            longer = 100 * (figure(pooled) / figure([one for row in rows[BARE] for one in row]) - 1)
            cells[f"{name} against bare, %"] = f"{longer:+.1f} ({least:+.1f} to {most:+.1f})"
        else:
            cells[f"{name} against bare, %"] = None
    return cells


def interval(
    measured: Sequence[Row], bare: Sequence[Row], figure: Callable[[Sequence[float]], float]
) -> tuple[float, float]:
    """Return the middle 95 % of the ratio to bare, in percent, over rotations drawn with replacement."""
    chance = random.Random(1)  # noqa: S311 - a resampling, not a secret
    found = []
    for _ in range(DRAWS):
        drawn = [chance.randrange(len(bare)) for _ in bare]
        one, other = ([latency for number in drawn for latency in rows[number]] for rows in (measured, bare))
        found.append(100 * (figure(one) / figure(other) - 1))
    found.sort()
    return found[round(0.025 * (DRAWS - 1))], found[round(0.975 * (DRAWS - 1))]


def p99(latencies: Sequence[float]) -> float:
    """Return the 99th percentile."""
    return sorted(latencies)[round(0.99 * (len(latencies) - 1))]


def spread(values: Sequence[float]) -> dict[str, float | int | str | None]:
    """Return median, least and greatest."""
    return {"median": median(values), "least": min(values), "greatest": max(values)}


FIGURES: Mapping[str, Callable[[Sequence[float]], float]] = {"mean": fmean, "p50": median, "p99": p99}
PART = Part("tail-rotations", "a service's latencies beside training, rows in turn", measure, seconds=8.0, torch=True)
