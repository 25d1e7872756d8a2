"""`make bench-rebalance`: how soon a claim that wakes has its guarantee back, and the stability of the rebalancer.

The whole platform runs as `make demo` starts it, with real agents and the simulated driver. Programs that use all of a
GPU are stopped and continued (SIGSTOP, SIGCONT); while the lender sleeps, a best-effort claim is placed on the borrowed
core and uses it. *Awake* is the time from SIGCONT to the end of the first 200 ms in which the lender got at least 90 %
of its guarantee, read from its usage page while the borrower keeps using the GPU; so it is never below 0.2 s.
"""

import argparse
import subprocess
import tempfile
import time
from collections import Counter
from pathlib import Path

from benchmarks.echo import Echo
from benchmarks.report import Row, print_report, quantile
from benchmarks.waking import Woken, go_on, sleep_now, wake
from tests.claims import Claims
from tests.platform import Platform, until

GUARANTEE, BORROWED = 80, 60
SWIFT = {"window_seconds": 5, "cool_down_seconds": 5}
# Half of a pool's default and less, so that ten minutes would show an oscillation many times.
LIVELY = {"window_seconds": 20, "cool_down_seconds": 60}
# Seconds that each program loads its GPU and is idle in turn; the second is never idle for a window.
PROGRAMS = {"shifts": (30.0, 100.0), "blinks": (10.0, 10.0), "steady": (1e9, 0.0), "sleeps": (0.0, 1e9)}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="make bench-rebalance", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--wakes", type=int, default=20, help="how often the lender wakes (20)")
    parser.add_argument("--minutes", type=float, default=10.0, help="how long the rebalancer is watched (10)")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gpucloud-bench-") as directory:
        print("starting the platform …", flush=True)
        with Platform(Path(directory) / "demo", programs=True) as platform:
            for claim in platform.granted("GET", "claims/?state=active&limit=200")["results"]:
                platform.granted("PATCH", f"claims/{claim['uid']}/", {"rebalance": False})
            wakes = measure_waking(platform, Path(directory), asked.wakes)
            print_report("rebalance", wakes, count_changes(platform, Path(directory), asked.minutes * 60))


def configure_pool(platform: Platform, bounds: dict[str, int]) -> None:
    """Configure the pool for the feedback policy."""
    platform.granted("PATCH", "pools/default/", {"rebalance_mode": "apply", "rebalance_bounds": bounds})


def measure_waking(platform: Platform, directory: Path, count: int) -> list[Row]:
    """Return the seconds from waking to the guarantee, beside a borrower."""
    configure_pool(platform, SWIFT)
    claims = Claims(platform, directory)
    try:
        lender = claims.ask(core_request=GUARANTEE)["uid"]
        program, echo = claims.run(lender)
        claims.fill(45)
        taker = claims.ask(wait=1, core_request=BORROWED, **{"class": "best-effort"})["uid"]
        borrower: Echo | None = None
        times: list[Woken] = []
        for _ in range(count):
            sleep_now(program.pid)
            until(lambda: _lends(platform, claims, lender), seconds=60, what="it to lend")
            if borrower is None:
                until(lambda: claims.read(taker)["state"] == "active", seconds=30, what="the borrower's place")
                _, borrower = claims.run(taker)
            _wait_for_use(borrower)
            times.append(wake(echo, program.pid, guarantee_percent=GUARANTEE))
            until(lambda: not claims.read(lender)["lent_core"], seconds=10, what="the books to follow")
    finally:
        claims.end()
    return [_row(times)]


def _lends(platform: Platform, claims: Claims, uid: str) -> bool:
    platform.granted("POST", "pools/default/rebalance/")
    return bool(claims.read(uid)["lent_core"])


def _wait_for_use(borrower: Echo) -> None:
    """Wait until the borrower has had the GPU for more than a second."""
    before = borrower.gpu_time_ns()
    until(lambda: borrower.gpu_time_ns() - before > 1e9, seconds=30, what="the borrower to use what is lent")


def _row(woken: list[Woken]) -> Row:
    seconds = [one.seconds for one in woken]
    firsts = [one.first_second_percent for one in woken]
    return {
        "wakes": len(woken),
        "awake s p50": quantile(seconds, 0.5),
        "awake s p90": quantile(seconds, 0.9),
        "awake s max": max(seconds),
        "first second % p50": quantile(firsts, 0.5),
        "first second % min": min(firsts),
    }


def count_changes(platform: Platform, directory: Path, seconds: float) -> list[Row]:
    """Count the rebalancer's changes of claims with different loads, run by beat as usual."""
    configure_pool(platform, LIVELY)
    claims = Claims(platform, directory)
    try:
        uids = {name: claims.ask(core_request=GUARANTEE, core_limit=GUARANTEE)["uid"] for name in PROGRAMS}
        programs = {name: claims.run(uid)[0] for name, uid in uids.items()}
        _play(programs, seconds)
        return [_changes(platform, name, uid) for name, uid in uids.items()]
    finally:
        claims.end()


def _play(programs: dict[str, subprocess.Popen[bytes]], seconds: float) -> None:
    begun = time.monotonic()
    asleep: set[str] = set()
    while (passed := time.monotonic() - begun) < seconds:
        for name, program in programs.items():
            on, off = PROGRAMS[name]
            rests = passed % (on + off) >= on
            if rests != (name in asleep):
                (sleep_now if rests else go_on)(program.pid)
                asleep ^= {name}
        time.sleep(0.1)
    for name in asleep:
        go_on(programs[name].pid)


def _changes(platform: Platform, name: str, uid: str) -> Row:
    found = platform.granted("GET", f"proposals/?claim={uid}&state=applied&limit=200")["results"]
    kinds = Counter(row["kind"] for row in found)
    limits = [row["after"]["core_limit"] - row["before"]["core_limit"] for row in found if row["kind"] == "limit"]
    on, off = PROGRAMS[name]
    return {
        "program": name,
        "on s": "all" if off == 0 else on,
        "off s": "all" if on == 0 else off,
        "lends": kinds["lend"],
        "gives back": kinds["give-back"],
        "limit up": sum(step > 0 for step in limits),
        "limit down": sum(step < 0 for step in limits),
    }


if __name__ == "__main__":
    main()
