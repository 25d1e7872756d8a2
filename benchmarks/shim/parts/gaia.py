"""GaiaGPU's experiments 2 to 4: partition, isolation, elastic allocation (the first is the part `overhead`)."""

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.shim.drive import SPARE_SECONDS, Got, run_alone, run_together, wait_for_imports, warm_all
from benchmarks.shim.pages import Claim
from benchmarks.shim.part import Part
from benchmarks.shim.plot import lines
from benchmarks.shim.processes import Process
from benchmarks.shim.report import Report
from benchmarks.shim.sampling import Course, Spread, Window, watch
from benchmarks.shim.stage import Stage

PARTITIONS, ISOLATIONS = (1, 2, 3, 4, 5, 8), (2, 4, 8)
MOST = 8
# The program of each tenant in the isolation experiment, in turn.
KINDS: Sequence[tuple[str, ...]] = (("decode",), ("gemm", "--size", "8192"), ("gemm", "--size", "1024"))
SETTLE_SECONDS, ALONE_SECONDS = 0.5, 2.0
# Elastic: a resident tenant with 30 % guaranteed; another with 70 % comes and goes.
RESIDENT, VISITOR = 30, 70
VISITS, VISIT_SECONDS, GAP_SECONDS = 3, 1.5, 1.5
SAMPLE_SECONDS = 0.01
# Two rounds of turns: less would show a tenant's turn, not its share.
REACTION_SECONDS, NEAR = 0.1, 6.0
Row = dict[str, float | int | str | None]


@dataclass(frozen=True)
class Tenants:
    """Eight claims with the same program each, and the same bare; and its rate alone."""

    stage: Stage
    report: Report
    claims: Mapping[str, Claim]
    decode: Mapping[str, Process]
    mixed: Mapping[str, Process]
    bare: float

    @classmethod
    def of(cls, stage: Stage, report: Report) -> "Tenants":
        claims = {f"tenant {number + 1}": stage.claim(100) for number in range(MOST)}
        decode = {name: stage.program(claim, *KINDS[0]) for name, claim in claims.items()}
        others = {
            name: stage.program(claim, *KINDS[number % 3])
            for number, (name, claim) in enumerate(claims.items())
            if number % 3
        }
        bare = stage.program(None, *KINDS[0])
        wait_for_imports([*decode.values(), *others.values(), bare])
        warm_all([*decode.values(), *others.values(), bare])
        return cls(stage, report, claims, decode, {**decode, **others}, run_alone(bare, ALONE_SECONDS))

    def divide(self, parts: int) -> list[str]:
        """Give the first so many tenants equal parts; return their names."""
        names = list(self.claims)[:parts]
        for name in names:
            self.claims[name].limit(self.stage.gpu.uuid, 100, request=100 // parts, policy="average", parts=parts)
        return names

    def run(self, names: Sequence[str], programs: Mapping[str, Process], seconds: float) -> dict[str, Got]:
        return run_together({name: programs[name] for name in names}, self.claims, seconds, SETTLE_SECONDS)


def measure(stage: Stage, report: Report) -> None:
    tenants = Tenants.of(stage, report)
    if stage.arbiter() is None:
        report.note("No arbiter in this build: each tenant follows its own limit while the driver slices time.")
    time.sleep(SETTLE_SECONDS)
    for experiment in (partition, isolation, elastic):
        try:
            experiment(tenants)
        except Exception as error:  # noqa: BLE001 - the other experiments are made all the same
            report.add_failure(experiment.__name__, error)


def partition(tenants: Tenants) -> None:
    rows: list[Row] = []
    for parts in PARTITIONS:
        names = tenants.divide(parts)
        one = tenants.run(names[:1], tenants.decode, tenants.stage.seconds)[names[0]]
        every = tenants.run(names, tenants.decode, tenants.stage.seconds)
        rates = Spread.of(100 * got.rate / tenants.bare for got in every.values())
        shares = Spread.of(got.share for got in every.values())
        tenants.report.raw(f"partition into {parts}", {name: got.figures() for name, got in every.items()})
        rows.append({
            "parts": parts, "each part, %": 100 / parts, "one tenant alone: share": f"{one.share:.2f} ± {one.sd:.2f}",
            "its rate, % of bare": 100 * one.rate / tenants.bare, "all together: shares": f"{shares.mean:.2f}",
            "least – greatest": f"{shares.least:.2f} – {shares.most:.2f}",
            "rates, least – greatest": f"{rates.least:.2f} – {rates.most:.2f}", "total rate": rates.mean * rates.count,
        })  # fmt: skip
    tenants.report.table(
        "Partition: a GPU divided into equal parts (policy average); transformer decode with CUDA graphs in each part, "
        "first in one part alone, then in all. Rates in % of the same program bare",
        rows,
    )
    wanted = [(float(parts), 100 / parts) for parts in PARTITIONS]
    alone = [(float(str(row["parts"])), float(str(row["its rate, % of bare"]))) for row in rows]
    drawn = {"100 / parts": wanted, "one tenant's rate": alone}
    tenants.report.plot("partition", lines("Rate of one part of a divided GPU", "parts", "% of bare", drawn, top=100))


def isolation(tenants: Tenants) -> None:
    rows: list[Row] = []
    drawn = {}
    for count in ISOLATIONS:
        names = tenants.divide(count)
        got = tenants.run(names, tenants.mixed, tenants.stage.seconds)
        tenants.report.raw(f"isolation of {count}", {name: each.figures() for name, each in got.items()})
        shares, deviations = Spread.of(each.share for each in got.values()), Spread.of(each.sd for each in got.values())
        error = max((each.share - 100 / count for each in got.values()), key=abs)
        rows.append({
            "tenants": count, "wanted": 100 / count, "mean": shares.mean,
            "least – greatest": f"{shares.least:.2f} – {shares.most:.2f}", "greatest error": f"{error:+.2f}",
            "sd over 0.5 s, mean": deviations.mean, "sd, greatest": deviations.most, "together": shares.mean * count,
        })  # fmt: skip
        drawn[count] = got
    tenants.report.table(
        "Isolation: tenants with equal parts that run different programs (decode, GEMM 8192³, GEMM 1024³ in turn) at "
        "the same time; shares of GPU time by the page, %",
        rows,
    )
    for count, found in drawn.items():
        series = {name: course_points(got.course) for name, got in found.items()}
        title = f"{count} tenants with equal parts"
        tenants.report.plot(f"isolation-{count}", lines(title, "seconds", "share of GPU time, %", series, top=60))


def course_points(course: Course | None) -> list[tuple[float, float]]:
    return [(window.end - course.begin, window.share) for window in course.windows] if course else []


def elastic(tenants: Tenants) -> None:
    """Run one tenant on the unused part; another one comes for its guaranteed share and leaves again."""
    resident, visitor = list(tenants.claims)[:2]
    for name, request in ((resident, RESIDENT), (visitor, VISITOR)):
        tenants.claims[name].limit(tenants.stage.gpu.uuid, 100, request=request, policy="burst")
    total = VISITS * (VISIT_SECONDS + GAP_SECONDS) + GAP_SECONDS
    staying, coming = tenants.decode[resident], tenants.decode[visitor]
    staying.say(f"run {total + 1}")
    staying.wait(seconds=SPARE_SECONDS)
    claims = {name: tenants.claims[name] for name in (resident, visitor)}
    windows: dict[str, list[Window]] = {name: [] for name in claims}
    came: list[float] = []
    left: list[float] = []
    for _ in range(VISITS):
        follow(windows, claims, GAP_SECONDS)
        came.append(time.monotonic())
        coming.say(f"run {VISIT_SECONDS}")
        follow(windows, claims, VISIT_SECONDS + 0.1)
        left.append(last_row_before(coming))
    follow(windows, claims, GAP_SECONDS)
    staying.wait("ran", SPARE_SECONDS)
    tell_elastic(tenants, windows, (resident, visitor), came, left)


def follow(windows: Mapping[str, list[Window]], claims: Mapping[str, Claim], seconds: float) -> None:
    for name, course in watch(claims, seconds, SAMPLE_SECONDS).items():
        windows[name] += course.windows


def last_row_before(process: Process) -> float:
    """Return the time of the visitor's last row of this visit."""
    process.wait("ran", SPARE_SECONDS)
    return max(float(row["at"]) for row in process.answers() if "at" in row)


def tell_elastic(
    tenants: Tenants, windows: Mapping[str, list[Window]], names: tuple[str, str], came: list[float], left: list[float]
) -> None:
    resident, visitor = names
    changes = (
        (f"{VISITOR} % come: the visitor has them", visitor, came, float(VISITOR)),
        (f"{VISITOR} % come: the resident is down to {RESIDENT}", resident, came, float(RESIDENT)),
        ("they leave: the resident has all again", resident, left, 100.0),
    )
    rows: list[Row] = []
    for title, name, moments, share in changes:
        taken = [reached(windows[name], moment, share) for moment in moments]
        tenants.report.raw(title, taken)
        rows.append(
            {"change": title, "times": len(taken), "median, ms": statistics.median(taken), "greatest": max(taken)}
        )
    tenants.report.table(
        f"Elastic allocation (policy burst): from coming or leaving to the end of the first window of "
        f"{REACTION_SECONDS * 1e3:.0f} ms (two rounds) within {NEAR:.0f} points of the new share (100: at once)",
        rows,
    )
    begin = windows[resident][0].begin
    series = {
        f"{name} ({request} %)": [(w.end - begin, w.share) for w in smooth(windows[name])]
        for name, request in ((resident, RESIDENT), (visitor, VISITOR))
    }
    title = "A tenant borrows what another leaves (guaranteed shares in brackets)"
    tenants.report.plot("elastic", lines(title, "seconds", "share of GPU time, %", series, top=100))


def smooth(windows: Sequence[Window]) -> list[Window]:
    """Return windows of the reaction's length, one ending at each sample."""
    found = []
    for at, last in enumerate(windows):
        first = at
        while first > 0 and last.end - windows[first].begin < REACTION_SECONDS * 0.999:
            first -= 1
        kept = windows[first : at + 1]
        if last.end - kept[0].begin >= REACTION_SECONDS * 0.999:
            found.append(Window(kept[0].begin, last.end, Course(kept).share))
    return found


def reached(windows: Sequence[Window], moment: float, share: float) -> float:
    """Return the milliseconds from the moment to the end of the first window after it that lies near the share."""
    after = [window for window in windows if window.begin >= moment]
    near = (window for window in smooth(after) if abs(window.share - share) <= NEAR)
    first = next(near, None)
    return 1000 * (first.end - moment) if first else float("inf")


PART = Part("gaia", "GaiaGPU's experiments: partition, isolation, elastic allocation", measure, seconds=2.5, torch=True)
