"""One tenant at a limit: shares of GPU time of programs with a known load."""

import time
from collections.abc import Sequence

from benchmarks.shim.pages import Claim
from benchmarks.shim.part import Part
from benchmarks.shim.processes import Process
from benchmarks.shim.report import Report
from benchmarks.shim.sampling import Spread, rate, rates, watch
from benchmarks.shim.stage import Stage

LIMITS = (10, 25, 50, 75, 90)
# In force within 100 ms; kernels of 10 ms at 10 % come every 100 ms.
SETTLE_SECONDS = 0.5
START_SECONDS = 20.0
# Two intervals of the programs' rows: the row at a measurement's end has been printed by then.
ROW_SECONDS = 0.2
Row = dict[str, float | int | str | None]
# Name, gpuload's options, how many processes of it.
LOADS: Sequence[tuple[str, tuple[str, ...], int]] = (
    ("flood of 6 µs kernels", ("--kernel-us", "6"), 1),
    ("flood of 100 µs kernels", ("--kernel-us", "100"), 1),
    ("flood of 1 ms kernels", ("--kernel-us", "1000"), 1),
    ("flood of 10 ms kernels", ("--kernel-us", "10000"), 1),
    ("launch + sync, 100 µs", ("--kernel-us", "100", "--sync"), 1),
    ("launch + sync, 1 ms", ("--kernel-us", "1000", "--sync"), 1),
    ("one block of 8.6 ms + sync", ("--kernel-us", "8600", "--sync"), 1),
    ("flood on 4 streams, 500 µs", ("--kernel-us", "500", "--streams", "4"), 1),
    ("3 processes, 500 µs", ("--kernel-us", "500"), 3),
)
QUICK_LOADS = (LOADS[2],)


def measure(stage: Stage, report: Report) -> None:
    rows: list[Row] = []
    for name, options, processes in QUICK_LOADS if stage.quick else LOADS:
        try:
            rows += load(stage, report, name, options, processes)
        except Exception as error:  # noqa: BLE001 - the other loads are measured all the same
            report.add_failure(name, error)
        stage.clear()
    report.table(
        "Share of GPU time, %, one tenant, the limit moved while it runs; ± sd over windows of 0.5 s. Page: as charged "
        "by libvcuda. Own: kernels finished × their duration (gaps between short ones are nobody's). Rate: kernels a "
        "second against a bare run before and after; rate / limit is to be at least 0.98",
        rows,
    )
    summary(report, rows)


def load(stage: Stage, report: Report, name: str, options: Sequence[str], processes: int) -> list[Row]:
    """Return a row per limit."""
    seconds = max(0.5, stage.seconds / 2)
    bare = [bare_rate(stage, options, processes, seconds)]
    claim = stage.claim(LIMITS[0])
    running = start(stage, claim, options, processes)
    kernel_us = float(options[options.index("--kernel-us") + 1])
    rows = [at_limit(stage, claim, running, limit, kernel_us) for limit in LIMITS]
    for process in running:
        process.terminate()
    bare.append(bare_rate(stage, options, processes, seconds))
    report.raw(name, {"bare kernels/s": bare, "limits": rows})
    whole = sum(bare) / len(bare)
    streams = int(options[options.index("--streams") + 1]) if "--streams" in options else 1
    return [row(name, limit, found, whole, streams) for limit, found in zip(LIMITS, rows, strict=True)]


def row(name: str, limit: int, found: dict[str, float], whole: float, streams: int) -> Row:
    percent = 100 * found["rate"] / whole if whole else 0.0
    return {
        "load": name,
        "limit": limit,
        "page": f"{found['page']:.2f} ± {found['page_sd']:.2f}",
        "page − limit": f"{found['page'] - limit:+.2f}",
        # Kernels that overlap on several streams would count several times.
        "own": f"{found['own'] / streams:.2f} ± {found['own_sd'] / streams:.2f}" if streams == 1 else None,
        "rate, % of bare": f"{percent:.2f}",
        "rate / limit": f"{percent / limit:.3f}",
    }


def start(stage: Stage, claim: Claim | None, options: Sequence[str], processes: int) -> list[Process]:
    running = [stage.gpuload(claim, *options) for _ in range(processes)]
    for process in running:
        process.wait(seconds=START_SECONDS)
    return running


def bare_rate(stage: Stage, options: Sequence[str], processes: int, seconds: float) -> float:
    """Return kernels a second without the shim."""
    running = start(stage, None, options, processes)
    begin = time.monotonic()
    time.sleep(seconds)
    end = time.monotonic()
    time.sleep(ROW_SECONDS)
    found = sum(rate(process.rows(), "kernels", begin, end) for process in running)
    for process in running:
        process.terminate()
    return found


def at_limit(stage: Stage, claim: Claim, running: Sequence[Process], limit: int, kernel_us: float) -> dict[str, float]:
    claim.limit(stage.gpu.uuid, limit)
    time.sleep(SETTLE_SECONDS)
    course = watch({"claim": claim}, stage.seconds)["claim"]
    time.sleep(ROW_SECONDS)
    rows = [process.rows() for process in running]
    own = [rates(lines, "kernels", course.begin, course.end) for lines in rows]
    together = [sum(each) * kernel_us / 1e4 for each in zip(*own, strict=True)]
    return {
        "page": course.share,
        "page_sd": course.spread.sd,
        "own": Spread.of(together).mean,
        "own_sd": Spread.of(together).sd,
        "rate": sum(rate(lines, "kernels", course.begin, course.end) for lines in rows),
    }


def summary(report: Report, rows: Sequence[Row]) -> None:
    errors = [abs(float(str(row["page − limit"]))) for row in rows]
    deviations = [float(str(row["page"]).partition("± ")[2]) for row in rows]
    ratios = [float(str(row["rate / limit"])) for row in rows]
    if rows:
        report.note(
            f"Over {len(rows)} rows: |page − limit| mean {Spread.of(errors).mean:.2f}, greatest {max(errors):.2f} "
            f"(target 0.5); sd mean {Spread.of(deviations).mean:.2f}, greatest {max(deviations):.2f} (target 1); "
            f"rate / limit mean {Spread.of(ratios).mean:.3f}, least {min(ratios):.3f} (target 0.98)."
        )


PART = Part("share", "one tenant's share of GPU time at limits, synthetic loads", measure, seconds=2.0)
