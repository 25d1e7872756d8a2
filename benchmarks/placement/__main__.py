"""`python -m benchmarks.placement`: each policy on each list of the trace, beside the published results."""

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev

from benchmarks.placement.bound import Bound
from benchmarks.placement.runs import POLICIES, Cell, allocated
from benchmarks.placement.trace import Draw, Machine, Trace, draw
from benchmarks.report import Row, description

ARRIVED = (95, 98, 100, 130)
# Power differs while GPUs are left to choose from.
POWER_ARRIVED = (20, 40, 60, 80, 95, 100)


def main() -> None:
    """Run the chosen cells; write rows to the file as they come, and print a table."""
    asked = _arguments()
    trace = Trace.found()
    lists = asked.lists.split(",") if asked.lists else trace.lists()
    if unknown := set(lists) - set(trace.lists()):
        raise SystemExit(f"No such list in {trace.at}: {', '.join(sorted(unknown))}; there are {trace.lists()}")
    machines, published = trace.machines(), trace.published()
    recorded = trace.recorded(Path(asked.arrivals)) if asked.arrivals else {}
    if recorded and (lacking := {(name, seed) for name in lists for seed in asked.seeds} - recorded.keys()):
        raise SystemExit(f"{asked.arrivals} has no draw of {min(lacking)}; it has {sorted(recorded)}")
    out = Path(asked.out)
    out.parent.mkdir(parents=True, exist_ok=True)
    print(f"{description()}\n{'list':12} {'policy':9} " + " ".join(f"{arrived:>15}" for arrived in ARRIVED), flush=True)
    with out.open("w") as file:
        for name in lists:
            asks = trace.asks(name)
            draws = [recorded[name, seed] if recorded else draw(machines, asks, seed) for seed in asked.seeds]
            bounds = _bounds(machines, draws)
            print(
                f"{name:12} {'no more':9} " + " ".join(f"{bounds[at]:15.2f}" for at in ARRIVED if at in bounds),
                flush=True,
            )
            for policy in asked.policies.split(","):
                began = time.monotonic()
                runs = [allocated(draw, asks, policy) for draw in draws]
                rows = _rows(name, policy, runs, asked.seeds, bounds)
                file.writelines(json.dumps(row) + "\n" for row in rows)
                file.flush()
                of_table = [row for row in rows if row["arrived"] in ARRIVED]
                cells = [_cell(row, published.get((name, policy, row["arrived"]))) for row in of_table]
                print(f"{name:12} {policy:9} {' '.join(cells)}  {time.monotonic() - began:.0f} s", flush=True)
                watts = " ".join(f"{row['arrived']} %: {row['kilowatts']:.1f}" for row in rows if row["kilowatts"])
                print(f"{'':12} {'kW':9} {watts}", flush=True)
    print(
        "Percent of all GPUs allocated by percent arrived, mean of the seeds; in brackets: published; no more: what no "
        f"scheduler can pass. Rows: {out}"
    )


def _bounds(machines: Sequence[Machine], draws: Sequence[Draw]) -> dict[int, float]:
    """Return the bounds of any scheduler by percent arrived, the mean of the seeds."""
    bound = Bound(machines)
    runs = [bound.by_arrived(draw.arriving, ARRIVED) for draw in draws]
    return {arrived: mean(run[arrived] for run in runs) for arrived in ARRIVED if all(arrived in run for run in runs)}


def _rows(
    name: str, policy: str, runs: Sequence[dict[int, Cell]], chosen: Sequence[int], bounds: dict[int, float]
) -> list[Row]:
    return [
        {
            "list": name,
            "policy": policy,
            "arrived": arrived,
            "allocated_percent": round(mean(run[arrived].percent for run in runs), 3),
            "sd": round(stdev(run[arrived].percent for run in runs), 3) if len(runs) > 1 else None,
            "kilowatts": round(mean(run[arrived].watts for run in runs) / 1000, 2),
            "kilowatts_sd": round(stdev(run[arrived].watts for run in runs) / 1000, 2) if len(runs) > 1 else None,
            "bound_percent": round(bounds[arrived], 3) if arrived in bounds else None,
            "seeds": list(chosen),
        }
        for arrived in sorted({*ARRIVED, *POWER_ARRIVED})
        if all(arrived in run for run in runs)
    ]


def _cell(row: Row, published: float | None) -> str:
    beside = f"({published:.2f})" if published is not None else ""
    return f"{row['allocated_percent']:7.2f} {beside:>7}"


def seeds(words: str) -> list[int]:
    """Parse `1,2,3`, `100-109` or both."""
    found: list[int] = []
    for part in words.split(","):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.placement", description=__doc__)
    parser.add_argument("--lists", default="", help="names joined by commas; all that are there unless given")
    parser.add_argument("--seeds", type=seeds, default=seeds("0-9"), help="1,2,3 or 100-109; 0-9 unless given")
    parser.add_argument("--policies", default=",".join(POLICIES))
    parser.add_argument("--arrivals", default="", help="a file of draws made elsewhere, in place of the seeds' own")
    parser.add_argument("--out", default=".bench/placement.jsonl")
    return parser.parse_args()


if __name__ == "__main__":
    main()
