"""Measure libvcuda on this machine's GPU, beside bare runs.

    python3 -m benchmarks.shim [PART …] --out DIRECTORY [--seconds N] [--only NAME,…]

Prints each table as it is measured, in markdown, and leaves in the directory PART.md, PART.json and PART-*.svg, and
all parts together in results.md and results.json. Without a PART, all of them. libvcuda is built first.
``--only`` chooses among the programs of ``foreign``, the cases and policies of ``beside``, and what ``tail`` measures
(``training``, ``GEMM``, ``servers``).
"""

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType

from benchmarks.shim.nvml import NvmlFailed
from benchmarks.shim.part import Part
from benchmarks.shim.parts import (
    beside,
    calls,
    change,
    foreign,
    gaia,
    matrix,
    memory,
    mps,
    mps_falls,
    mps_live,
    mps_memory,
    mps_probe,
    nccl,
    observed,
    overhead,
    pytorch,
    share,
    share_torch,
    stops,
    tail,
    tail_lent,
    tail_rotations,
    tenants,
)
from benchmarks.shim.report import Report
from benchmarks.shim.stage import ROOT, Stage, set_timer_slack

PARTS = [
    calls.PART,
    memory.PART,
    share.PART,
    matrix.PART,
    share_torch.PART,
    tenants.PART,
    overhead.PART,
    observed.PART,
    change.PART,
    pytorch.PART,
    nccl.PART,
    gaia.PART,
    stops.PART,
    foreign.PART,
    beside.PART,
    tail.PART,
    tail_rotations.PART,
    tail_lent.PART,
    mps_probe.PART,
    mps_memory.PART,
    mps_live.PART,
    mps.PART,
    mps_falls.PART,
]
# No part takes four minutes; one that hangs must not keep the others from running.
PART_SECONDS = 400


class TookTooLong(BaseException):
    """A part took too long: none of its own handlers may treat this as a failed measurement."""


def main() -> int:
    """Run the chosen parts; return zero if all of them were measured."""
    options = parse()
    if options.list:
        for part in PARTS:
            needs = (["PyTorch"] if part.torch else []) + ([f"{part.gpus} GPUs"] if part.gpus > 1 else [])
            print(f"{part.name:12} {part.about}" + (f" (needs {', '.join(needs)})" if needs else ""))
        return 0
    options.out.mkdir(parents=True, exist_ok=True)
    subprocess.run(["make", "-s", f"-j{os.cpu_count()}", "-C", str(ROOT / "libvcuda"), "all"], check=True)
    set_timer_slack()
    signal.signal(signal.SIGALRM, give_up)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    chosen = [part for part in PARTS if part.name in options.parts or not options.parts]
    try:
        good = [run(part, options) for part in chosen]
    except NvmlFailed as failed:
        print(f"bench-shim: {failed} Try --simulated to see that the programs run.", file=sys.stderr)
        return 2
    return 0 if all(good) else 1


def run(part: Part, options: argparse.Namespace) -> bool:
    """Measure one part; return True if all of it was measured, or does not apply to this machine."""
    began = time.monotonic()
    seconds = options.seconds or part.seconds
    with contextlib.closing(make_stage(options, seconds)) as stage:
        version, count = (None if options.simulated else stage.torch()) or (None, len(stage.gpus))
        if part.torch and version is None:
            print(f"\n{part.name}: skipped, it needs PyTorch and a real GPU", flush=True)
            return True
        if count < part.gpus:
            print(f"\n{part.name}: skipped, it needs {part.gpus} GPUs", flush=True)
            return True
        print(f"\n## {part.name}: {part.about}", flush=True)
        report = Report(part.name, part.about, stage.machine(version), options.out)
        signal.alarm(PART_SECONDS)
        try:
            part.measure(stage, report)
        except (Exception, TookTooLong) as error:  # noqa: BLE001 - the other parts are measured all the same
            report.add_failure("the rest of this part", error)
        finally:
            signal.alarm(0)
        report.write()
    print(f"\n({part.name} took {time.monotonic() - began:.0f} s)", flush=True)
    return report.whole


def make_stage(options: argparse.Namespace, seconds: float) -> Stage:
    only = frozenset(options.only.split(",")) - {""}
    stage = Stage(simulated=options.simulated, seconds=seconds, quick=options.quick, only=only)
    stage.gpus = stage.gpus[options.gpu :] + stage.gpus[: options.gpu]
    return stage


def give_up(_number: int, _frame: FrameType | None) -> None:
    raise TookTooLong(f"given up after {PART_SECONDS} s")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="benchmarks.shim", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help="what to measure (see --list)")
    parser.add_argument("--out", type=Path, default=Path(".bench"), help="where the results go (.bench)")
    parser.add_argument("--seconds", type=float, help="how long each measurement takes (each part has its own)")
    parser.add_argument("--simulated", action="store_true", help="on the simulated driver: the figures mean nothing")
    parser.add_argument("--quick", action="store_true", help="fewest repetitions: does it run at all?")
    parser.add_argument("--only", default="", metavar="NAME,…", help="of a part's programs or cases, these")
    parser.add_argument("--gpu", type=int, default=0, metavar="N", help="begin with this GPU (0)")
    parser.add_argument("--list", action="store_true", help="list the parts")
    options = parser.parse_args()
    unknown = set(options.parts) - {part.name for part in PARTS}
    if unknown:
        parser.error(f"no such part: {', '.join(sorted(unknown))} (see --list)")
    return options


if __name__ == "__main__":
    sys.exit(main())
