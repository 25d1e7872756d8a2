"""Third-party programs at limits: judged by their kernels' times, and not by the library's own page."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.shim.drive import Charged, Got, Profiled, profile_judged, run_alone, run_charged, warm_each
from benchmarks.shim.pages import Claim
from benchmarks.shim.part import Part
from benchmarks.shim.processes import Process, ProcessFailed
from benchmarks.shim.report import Report
from benchmarks.shim.stage import Stage

LIMITS, QUICK_LIMITS = (100, 15, 25, 40, 50, 75), (100, 25)
SETTLE_SECONDS, BARE_SECONDS, PROFILE_SECONDS = 0.3, 0.8, 0.4
# Points between the page and the kernels, and between a share and its limit; the sufficient part of a rate.
PAGE_POINTS, LIMIT_POINTS, RATE_PART = 2.0, 1.0, 0.95
Row = dict[str, float | int | str | None]


@dataclass(frozen=True)
class Program:
    """A program of ``programs`` with its options. ``extra`` ones are measured only where ``--only`` names them."""

    about: str
    command: Sequence[str]
    extra: bool = False


PROGRAMS: Mapping[str, Program] = {
    "item": Program("transformer training, the loss read each step", ("train", "--item")),
    "cnn": Program("small CNN, training", ("cnn", "--model", "small")),
    "resnet": Program("ResNet-50 of transformers, training", ("resnet",)),
    "generate": Program("generate of transformers, small Llama", ("generate",)),
    "gemm": Program("stream of small GEMMs (1024³)", ("gemm", "--size", "1024")),
    "wait": Program("launch and wait, tanh(x @ x)", ("wait",)),
    "jax": Program("JAX, training step", ("jax_train",)),
    "triton": Program("Triton, launches and a wait", ("triton_loop",)),
    "cupy": Program("CuPy, operations and .get()", ("cupy_loop",)),
    "compile": Program("torch.compile, reduce-overhead, training", ("train", "--compile"), extra=True),
    "decode": Program("transformer decode, CUDA graphs", ("decode",), extra=True),
}


@dataclass(frozen=True)
class Judged:
    """One program at one limit: iterations a second in a window and the whole run's charge without the profiler; the
    profiler's figures.
    """

    rate: float
    whole: Charged | None
    profiled: Profiled | None

    @property
    def kernels(self) -> float | None:
        """Return the percentage of time in which its kernels ran.

        It is the profiler's time of an iteration, times the rate.
        """
        return self.profiled.kernel_ns * self.rate / 1e7 if self.profiled else None

    @property
    def whole_kernels(self) -> float | None:
        """Return the same for the whole run."""
        return self.profiled.kernel_ns * self.whole.rate / 1e7 if self.profiled and self.whole else None


@dataclass(frozen=True)
class Pair:
    """One program, bare and under its claim."""

    about: str
    bare: Process
    limited: Process
    claim: Claim


def measure(stage: Stage, report: Report) -> None:
    chosen = {
        key: each for key, each in PROGRAMS.items() if stage.is_chosen(key) and (stage.names(key) or not each.extra)
    }
    pairs = start(stage, chosen)
    both = {f"{key} {mode}": process for key, pair in pairs.items() for mode, process in list_modes(pair).items()}
    failed = warm_each(both)
    for name, error in failed.items():
        report.add_failure(name, error)
    rows: list[Row] = []
    free: list[Row] = []
    for key, pair in pairs.items():
        if f"{key} bare" not in failed and f"{key} limited" not in failed:
            try:
                measure_program(stage, report, pair, rows, free)
            except Exception as error:  # noqa: BLE001 - the other programs are measured all the same
                report.add_failure(key, error)
        for process in list_modes(pair).values():
            process.kill()
    report_tables(report, rows, free)


def start(stage: Stage, chosen: Mapping[str, Program]) -> dict[str, Pair]:
    pairs = {}
    for key, program in chosen.items():
        claim = stage.claim(100)
        bare, limited = (stage.program(to, *program.command) for to in (None, claim))
        pairs[key] = Pair(program.about, bare, limited, claim)
    return pairs


def list_modes(pair: Pair) -> dict[str, Process]:
    return {"bare": pair.bare, "limited": pair.limited}


def measure_program(stage: Stage, report: Report, pair: Pair, rows: list[Row], free: list[Row]) -> None:
    """Measure one program: add a row without the library, and one per limit.

    Every rate comes before the first profile: a process that was profiled once may launch more slowly ever after.
    """
    limits = QUICK_LIMITS if stage.quick else LIMITS
    whole = [run_alone(pair.bare, BARE_SECONDS)]
    got: dict[int, tuple[Got, Charged]] = {}
    for number, limit in enumerate(limits):
        try:
            set_limit(stage, pair, limit)
            got[limit] = run_charged(pair.limited, pair.claim, stage.seconds)
        except ProcessFailed as error:
            report.add_failure(f"{pair.about} at {limit}", error)
            break
        if number == len(limits) // 2:
            whole.append(run_alone(pair.bare, BARE_SECONDS))
    whole.append(run_alone(pair.bare, BARE_SECONDS))
    bare = Judged(sum(whole) / len(whole), None, profile_judged(pair.bare, None, PROFILE_SECONDS))
    free.append(make_bare_row(pair, bare, whole))
    found = {
        limit: Judged(window.rate, charged, profile_at(stage, report, pair, limit))
        for limit, (window, charged) in got.items()
    }
    rows += [make_row(pair.about, limit, bare, judged) for limit, judged in found.items()]
    figures = {limit: collect_figures(judged) for limit, judged in found.items()}
    report.raw(pair.about, {"bare/s": whole, "limits": figures})


def set_limit(stage: Stage, pair: Pair, limit: int) -> None:
    """Write the limit and run for a moment, so that it is in force and saved credit is spent."""
    pair.claim.limit(stage.gpu.uuid, limit)
    run_alone(pair.limited, SETTLE_SECONDS)


def profile_at(stage: Stage, report: Report, pair: Pair, limit: int) -> Profiled | None:
    """Profile the limited program; None if that failed."""
    try:
        set_limit(stage, pair, limit)
        return profile_judged(pair.limited, pair.claim, PROFILE_SECONDS)
    except ProcessFailed as error:
        report.add_failure(f"{pair.about}, profiled at {limit}", error)
        return None


def collect_figures(judged: Judged) -> dict[str, float | None]:
    seen = judged.profiled
    found = {"rate": judged.rate, "kernels": judged.kernels, "kernels, whole run": judged.whole_kernels}
    if judged.whole is not None:
        found |= {"rate, whole run": judged.whole.rate, "page": judged.whole.share}
    if seen is None:
        return found
    return {**found, "CUPTI": seen.share, "page meanwhile": seen.page, "ns/iteration": seen.kernel_ns}


def make_bare_row(pair: Pair, bare: Judged, whole: Sequence[float]) -> Row:
    return {
        "program": pair.about,
        "bare/s": bare.rate,
        "least – greatest": f"{min(whole):.1f} – {max(whole):.1f}",
        "kernels, % of the time": bare.kernels,
        "CUPTI, % (while profiled)": bare.profiled.share if bare.profiled else None,
        "kernels, µs/iteration": bare.profiled.kernel_ns / 1e3 if bare.profiled else None,
    }


def make_row(about: str, limit: int, bare: Judged, found: Judged) -> Row:
    seen, kernels, whole = found.profiled, found.whole_kernels, found.whole
    apart = whole.share - kernels if whole is not None and kernels is not None else None
    then = seen.page - seen.share if seen and seen.page is not None else None
    return {
        "program": about,
        "limit": limit,
        "rate, % of bare": 100 * found.rate / bare.rate if bare.rate else None,
        "kernels": found.kernels,
        "CUPTI": seen.share if seen else None,
        "whole run: kernels": kernels,
        "page": whole.share if whole else None,
        "page − kernels": f"{apart:+.2f}" if apart is not None else None,
        "page − CUPTI, same time": f"{then:+.2f}" if then is not None else None,
        "page right": "not judged" if apart is None else "yes" if abs(apart) <= PAGE_POINTS else "NO",
        "limit held": judge_limit(limit, bare, found),
    }


def judge_limit(limit: int, bare: Judged, found: Judged) -> str:
    """Judge a limit: ``yes``, ``OVER``, ``short`` of what it allows, or ``slow`` although it needs less than that."""
    alone, kernels = bare.kernels, found.kernels
    if alone is None or kernels is None:
        return "not judged"
    if alone <= limit:
        return "yes" if found.rate >= RATE_PART * bare.rate else "slow"
    if kernels > limit + LIMIT_POINTS:
        return "OVER"
    enough = kernels >= limit - LIMIT_POINTS or found.rate >= RATE_PART * bare.rate * limit / alone
    return "yes" if enough else "short"


def report_tables(report: Report, rows: Sequence[Row], free: Sequence[Row]) -> None:
    report.table("The same programs without the library", free)
    report.table(
        "Programs that others wrote, at limits of GPU time; percent. Rate: iterations a second without the profiler "
        "against a bare process before, between and after. Kernels: what an iteration's kernels take, by the profiler "
        "at this limit, times that rate. CUPTI: the share while profiled, which slows launches down. Whole run: of all "
        "its iterations; it begins with the credit of the pause before. Page: what the library charged for it. It is "
        f"right within {PAGE_POINTS:.0f} points of the whole run's kernels. A limit is held where the kernels are "
        f"within {LIMIT_POINTS:.0f} point of it, or the rate is {RATE_PART:.2f} of limit / what it needs bare; needing "
        f"less: where it is {RATE_PART:.2f} of bare",
        rows,
    )
    if rows:
        right, kept = (sum(each[column] == word for each in rows) for column, word in VERDICTS)
        report.note(f"Of {len(rows)} rows the page is right in {right}, the limit held in {kept}.")


VERDICTS = (("page right", "yes"), ("limit held", "yes"))
PART = Part("foreign", "programs that others wrote, limited", measure, seconds=0.8, torch=True)
