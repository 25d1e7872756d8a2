"""`make bench-forecast`: what each rebalance policy would have lent on a trace of real use, and whom it throttled.

The trace is a file, or a directory of files, of one of these forms; none is part of this repository:

- `value,timestamp_anon,container_ip`: percent of a GPU by pod (GenTD26, `pod_gpu_duty_cycle_anon.csv`);
- `gmt_create,…,exec_time_seconds,…,checkpoint_model_version_id,…`: requests (GenTD26, `lora_request_trace.csv`).
  A model is a claim; its seconds of execution are busy seconds, shared by as many equal replicas as its 99th
  percentile of busy minutes needs;
- `timestamp,value`: percent by file (the Numenta Anomaly Benchmark's EC2 and RDS instances: CPUs, not GPUs).

Settings are chosen on the first half of the days: for each policy, those that lend most while at most the target part
of the windows throttles an owner. They are judged on the second half. A trace given with --aside is judged by the
settings of the first trace.
"""

import argparse
import csv
import math
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from apps.forecasts import quantiles
from apps.forecasts.quantiles import DAY, WINDOW_SECONDS, Series
from apps.forecasts.replaying import HOURS_OF_A_WINDOW, Outcome, Past, forecasts, replay
from apps.rebalancing.values import Bounds, Forecast

# Parts of windows in which an owner may be throttled, in percent.
TARGETS = (2.0, 5.0)
GRID: Mapping[str, Sequence[Mapping[str, int]]] = {
    "feedback": [{"window_seconds": seconds} for seconds in (300, 600, 1800, 3600)],
    "percentile": [
        {"window_seconds": seconds, "margin_percent": margin} for seconds in (300, 1800) for margin in (20, 100)
    ],
    "forecast": [{"forecast_risk_percent": risk} for risk in (2, 3, 5, 7, 10, 20)],
}
# Claims on one GPU, each guaranteed an equal part, for the demand that is not served.
ON_A_GPU = 3


# Forecasts do not depend on the guarantee: they are made once for each trace, risk and begin.
MADE: dict[tuple[str, int, int, int], dict[str, dict[int, Forecast]]] = {}


class Trace(NamedTuple):
    """Series by claim, and the begin of the first window, Unix seconds."""

    name: str
    series: dict[str, Series]
    begin: int

    def pasts(self, request: int) -> list[Past]:
        """Return the claims with this guarantee."""
        return [Past(name, request, used) for name, used in self.series.items()]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="make bench-forecast", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("trace", type=Path, help="a CSV file or a directory of them")
    parser.add_argument("--aside", type=Path, nargs="*", default=[], help="traces that only judge")
    parser.add_argument("--claims", type=int, default=12, help="claims replayed, those with the most use (12)")
    asked = parser.parse_args()
    first = read(asked.trace, asked.claims)
    half = len(next(iter(first.series.values()))) // 2
    chosen = tune(cut(first, half))
    print_settings(chosen)
    judge(first, chosen, begin=half)
    for path in asked.aside:
        aside = read(path, asked.claims)
        judge(aside, chosen, begin=min(3 * DAY, len(next(iter(aside.series.values()))) // 2))
    print_cost()


def read(path: Path, most: int) -> Trace:
    """Return the trace of this path, by the header of its files."""
    files = sorted(path.glob("*.csv")) if path.is_dir() else [path]
    samples: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for file in files:
        with file.open() as lines:
            rows = csv.DictReader(lines)
            names = rows.fieldnames or []
            if "exec_time_seconds" in names:
                _read_requests(rows, samples)
            else:
                _read_samples(rows, samples, file.stem)
    begin = min(min(windows) for windows in samples.values())
    length = max(max(windows) for windows in samples.values()) - begin + 1
    series = {}
    for name, windows in samples.items():
        used = np.full(length, np.nan)
        for window, values in windows.items():
            used[window - begin] = min(max(values), 100.0)
        series[name] = used
    busiest = sorted(series, key=lambda name: (-float(np.nansum(series[name])), name))[:most]
    return Trace(path.name, {name: series[name] for name in busiest}, begin * WINDOW_SECONDS)


def _read_samples(rows: Iterable[Mapping[str, str]], samples: dict[str, dict[int, list[float]]], stem: str) -> None:
    for row in rows:
        text = row.get("timestamp_anon") or row["timestamp"]
        at = float(text) if "timestamp_anon" in row else _seconds(text)
        samples[row.get("container_ip") or stem][int(at // WINDOW_SECONDS)].append(float(row["value"]))


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


def _read_requests(rows: Iterable[Mapping[str, str]], samples: dict[str, dict[int, list[float]]]) -> None:
    busy: dict[str, dict[int, float]] = defaultdict(lambda: defaultdict(float))
    for row in rows:
        at, left = _seconds(row["gmt_create"]), float(row["exec_time_seconds"] or 0)
        while left > 0:
            part = min(left, 60 - at % 60)
            busy[row["checkpoint_model_version_id"]][int(at // 60)] += part
            at, left = at + part, left - part
    first = min(min(minutes) for minutes in busy.values())
    last = max(max(minutes) for minutes in busy.values())
    for name, minutes in busy.items():
        replicas = max(1, math.ceil(float(np.quantile(list(minutes.values()), 0.99)) / 60))
        for minute in range(first, last + 1):
            samples[name][minute * 60 // WINDOW_SECONDS].append(minutes.get(minute, 0.0) / 60 / replicas * 100)


def cut(trace: Trace, windows: int) -> Trace:
    """Return the first windows of a trace."""
    return trace._replace(series={name: used[:windows] for name, used in trace.series.items()})


def tune(trace: Trace) -> dict[tuple[str, float], Mapping[str, int]]:
    """Return the settings of each policy and target that lend most on this trace without passing the target."""
    chosen = {}
    first = min(3 * DAY, len(next(iter(trace.series.values()))) // 2)
    for policy, grid in GRID.items():
        found = [(settings, _replayed(trace, policy, settings, first)) for settings in grid]
        for target in TARGETS:
            fit = [pair for pair in found if pair[1].throttled_percent <= target]
            best = (
                max(fit, key=lambda pair: pair[1].lent_core_hours)
                if fit
                else min(found, key=lambda pair: pair[1].throttled_percent)
            )
            chosen[policy, target] = best[0]
    return chosen


def _replayed(trace: Trace, policy: str, settings: Mapping[str, int], first: int, request: int = 100) -> Outcome:
    changed: dict[str, Any] = dict(settings)
    bounds, pasts = replace(Bounds(), **changed), trace.pasts(request)
    made = None
    if policy == "forecast":
        key = (trace.name, len(pasts[0].used), bounds.forecast_risk_percent, first)
        if key not in MADE:
            MADE[key] = {past.claim: forecasts(past.used, bounds.forecast_risk_percent, first) for past in pasts}
        made = MADE[key]
    return replay(policy, pasts, bounds, begin=trace.begin, first=first, made=made)


def print_settings(chosen: Mapping[tuple[str, float], Mapping[str, int]]) -> None:
    """Print what was chosen."""
    for (policy, target), settings in chosen.items():
        print(f"chosen for {target:g} %: {policy} {dict(settings)}")


def judge(trace: Trace, chosen: Mapping[tuple[str, float], Mapping[str, int]], *, begin: int) -> None:
    """Print what the chosen settings do from this window on, and what the others lend at equal throttling."""
    length = len(next(iter(trace.series.values())))
    print(f"\n{trace.name}: {len(trace.series)} claims, {(length - begin) / DAY:.1f} days judged")
    print("| target | policy | throttled % | lent GPU-h | changes per claim-day | forecasts too low % |")
    print("| --- | --- | --- | --- | --- | --- |")
    curves = {policy: [_replayed(trace, policy, settings, begin) for settings in grid] for policy, grid in GRID.items()}
    for (policy, target), settings in chosen.items():
        one = curves[policy][list(GRID[policy]).index(settings)]
        wrong = "" if one.wrong_percent is None else f"{one.wrong_percent:.2f}"
        print(
            f"| {target:g} | {policy} | {one.throttled_percent:.2f} | {one.lent_core_hours:.0f} | "
            f"{one.changes / one.windows * DAY:.1f} | {wrong} |"
        )
    _print_ceiling(trace, begin)
    _print_equal(curves)
    _print_calibration(curves["forecast"])
    _print_unserved(trace, chosen, begin)


def _print_ceiling(trace: Trace, begin: int) -> None:
    """Print what one who knew each window beforehand could lend without throttling anybody."""
    used = np.array(list(trace.series.values()))[:, begin:]
    print(f"all that is not used: {np.nansum(100 - used) / 100 * HOURS_OF_A_WINDOW:.0f} GPU-h")


def _print_equal(curves: Mapping[str, Sequence[Outcome]]) -> None:
    """Print how much more each forecast lends than the best setting of the others that throttles no more."""
    for settings, one in zip(GRID["forecast"], curves["forecast"], strict=True):
        for other in ("feedback", "percentile"):
            equal = [row for row in curves[other] if row.throttled_percent <= one.throttled_percent]
            if equal:
                best = max(row.lent_core_hours for row in equal)
                print(
                    f"risk {settings['forecast_risk_percent']} %: throttled {one.throttled_percent:.2f} %, lends "
                    f"{100 * (one.lent_core_hours / best - 1):+.1f} % against the best {other} that throttles no more"
                )


def _print_calibration(found: Sequence[Outcome]) -> None:
    off = [
        abs(one.wrong_percent - settings["forecast_risk_percent"])
        for settings, one in zip(GRID["forecast"], found, strict=True)
        if one.wrong_percent is not None
    ]
    if off:
        print(f"calibration error: at most {max(off):.2f} points, mean {np.mean(off):.2f}")


def _print_unserved(trace: Trace, chosen: Mapping[tuple[str, float], Mapping[str, int]], begin: int) -> None:
    """Print the demand that is not served if a claim's excess is served only from what others on its GPU lend.

    On a node, turns also give it what nobody lends and nobody uses: that is the figure of turns.
    """
    part = 100 // ON_A_GPU
    number = len(trace.series) // ON_A_GPU * ON_A_GPU
    used = np.nan_to_num(np.array(list(trace.series.values())[:number]))[:, begin:]
    # Neighbours in the order of use would all be busy: deal them out.
    dealt = np.arange(number).reshape(ON_A_GPU, -1).T
    total = used.sum()
    excess = np.maximum(used - part, 0.0)
    ideal = sum(np.maximum(used[gpu].sum(axis=0) - 100, 0).sum() for gpu in dealt)
    print(
        f"unserved demand, {ON_A_GPU} claims on a GPU: fixed slices {100 * excess.sum() / total:.1f} %, "
        f"turns within a window {100 * ideal / total:.1f} %"
    )
    for policy, grid in GRID.items():
        for settings in grid:
            one = _replayed(trace, policy, settings, begin, part)
            unserved = 100 * _unserved(excess, one.lent[:number, begin:], dealt) / total
            is_chosen = settings is chosen[policy, TARGETS[-1]]
            print(
                f"{policy} {dict(settings)}: throttled {one.throttled_percent:.2f} %, unserved {unserved:.1f} %"
                f"{' (chosen)' * is_chosen}"
            )


def _unserved(excess: NDArray[np.float64], lent: NDArray[np.float64], dealt: NDArray[np.int64]) -> float:
    return float(sum(np.maximum(excess[gpu].sum(axis=0) - lent[gpu].sum(axis=0), 0.0).sum() for gpu in dealt))


def print_cost(claims: int = 1000) -> None:
    """Print what fits and forecasts of a thousand claims cost one process."""
    rng = np.random.default_rng(1)
    past = np.clip(rng.normal(20, 15, 28 * DAY), 0, 100)
    # Of the process: the machine may be busy.
    begin = time.process_time()
    found = quantiles.fit([past], 5)
    fitted = time.process_time() - begin
    assert found is not None
    begin = time.process_time()
    for _ in range(claims):
        quantiles.forecast(past[-9 * DAY :], found)
    spent = time.process_time() - begin
    print(f"\na fit of 28 days: {1000 * fitted:.0f} ms; {claims} forecasts: {1000 * spent:.0f} ms")
    print(f"a window is {HOURS_OF_A_WINDOW * 60:.0f} minutes")


if __name__ == "__main__":
    main()
