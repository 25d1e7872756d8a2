"""`python -m benchmarks.churn`: a production trace by its own clock, at one, two and three times its load.

`gpucloud` is the product's cycles: its order of tenants, backfill and score; `limits` the same with time limits on
claims; `shares` the same without the pool's patience. `fifo` is first come, first served with best fit (the fullest
node that fits, its fullest GPUs), where a claim that does not fit blocks all later ones; `passing` lets later ones that
fit go first; `passing-fgd` places by FGD.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import mean, stdev

from apps.scheduling.core.values import GpuState
from benchmarks.churn.figures import figures
from benchmarks.churn.load import Terms, draw
from benchmarks.churn.replay import replay
from benchmarks.churn.schedulers import Fifo, Rounds, Scheduler
from benchmarks.placement.__main__ import seeds
from benchmarks.placement.trace import Trace
from benchmarks.report import Row, description

# Best fit: the fullest node, its fullest GPUs.
BEST_FIT = "gpu-admission"
SCHEDULERS: dict[str, Callable[[Iterable[GpuState]], Scheduler]] = {
    "gpucloud": Rounds,
    "limits": Rounds,
    "shares": lambda gpus: Rounds(gpus, patience_seconds=None),
    "fifo": lambda gpus: Fifo(gpus, BEST_FIT, passing=False),
    "passing": lambda gpus: Fifo(gpus, BEST_FIT, passing=True),
    "passing-fgd": lambda gpus: Fifo(gpus, "fgd", passing=True),
}


def main() -> None:
    """Run the chosen loads and schedulers; print a row for each, with the spread of the seeds."""
    asked = _arguments()
    trace = Trace.found()
    out = Path(asked.out)
    out.parent.mkdir(parents=True, exist_ok=True)
    print(f"{description()}\nmean ± standard deviation of seeds {asked.seeds}; waits in minutes", flush=True)
    with out.open("w") as file:
        for load in asked.loads:
            for name in asked.schedulers.split(","):
                began = time.monotonic()
                terms = Terms(asked.list, asked.part, asked.percent or None, load, name == "limits", asked.half)
                runs = []
                for seed in asked.seeds:
                    drawing = draw(trace, terms, seed)
                    runs.append(figures(replay(drawing, SCHEDULERS[name](drawing.gpus))))
                row: Row = {"load": load, "scheduler": name, "list": asked.list, **_spread(runs), "seeds": asked.seeds}
                file.write(json.dumps(row) + "\n")
                file.flush()
                print(f"\n{load}x {name} ({time.monotonic() - began:.0f} s)", flush=True)
                for key in runs[0]:
                    print(f"  {key:24} {row[key][0]:12.2f} ± {row[key][1]:.2f}", flush=True)
    print(f"Rows: {out}")


def _spread(runs: Sequence[dict[str, float]]) -> dict[str, tuple[float, float]]:
    found = {key: [run[key] for run in runs] for key in runs[0]}
    return {
        key: (round(mean(values), 4), round(stdev(values), 4) if len(values) > 1 else 0.0)
        for key, values in found.items()
    }


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.churn", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--list", default="default", help="one of the trace's lists with times")
    parser.add_argument("--loads", type=lambda words: [int(word) for word in words.split(",")], default=[1, 2, 3])
    parser.add_argument("--seeds", type=seeds, default=seeds("0-4"), help="0-4 unless given")
    parser.add_argument("--schedulers", default=",".join(SCHEDULERS))
    parser.add_argument("--part", type=int, default=48, help="one node in so many (48)")
    parser.add_argument("--percent", type=int, default=60, help="of GPUs asked for at load 1; 0: the trace once (60)")
    parser.add_argument("--half", type=int, choices=(1, 2), help="of the trace's days, the first half or the second")
    parser.add_argument("--out", default=".bench/churn.jsonl")
    return parser.parse_args()


if __name__ == "__main__":
    main()
