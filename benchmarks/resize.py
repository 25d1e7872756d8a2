"""`make bench-resize`: the time from a PATCH to the new limit in force inside the running process.

The whole platform runs as `make demo` starts it; a GPU program runs under a claim; its core limit is moved back and
forth over the REST API. The limit is in force at the generation that libvcuda has applied, read from the claim's usage
page. Two times are read in this process: just before the request is sent, and when its answer (which follows the
commit) has come.
"""

import argparse
import tempfile
import time
from pathlib import Path

from benchmarks.echo import Echo
from benchmarks.report import Row, print_report, spread_ms
from tests.platform import ROOT, Platform, until

GPULOAD = ROOT / "libvcuda" / "build" / "gpuload"
# Separate the changes: the agent samples twice more after each, 250 and 500 ms later.
PAUSE_SECONDS = 0.6
# A generation that is unobserved after this time got lost, and the next poll repairs it.
LOST_SECONDS = 15.0


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="make bench-resize", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--resizes", type=int, default=200, help="how many (200)")
    count = parser.parse_args().resizes
    with tempfile.TemporaryDirectory(prefix="gpucloud-bench-") as directory:
        print("starting the platform …", flush=True)
        with Platform(Path(directory) / "demo", programs=True) as platform:
            print_report("resize", measure(platform, Path(directory), count))


def measure(platform: Platform, directory: Path, count: int) -> list[Row]:
    """Return rows of milliseconds: from the request, and from its answer, to in force."""
    platform.new_tenant("bench")
    body = {"tenant": "bench", "name": "resized", "core_request": 20, "core_limit": 40, "memory_mib": 4096}
    claim = platform.granted("POST", "claims/?wait=30", body)
    uid, path = claim["uid"], f"claims/{claim['uid']}/"
    program = platform.run(uid, str(GPULOAD), "--memory", "1GiB", "--kernel-us", "500", log=directory / "program.log")
    run_dir = Path(platform.granted("GET", f"{path}env/")["agent_socket"]).parent
    try:
        echo = Echo(run_dir, uid)
        until(lambda: echo.generation() == claim["generation"], seconds=20, what="the program to have its limits")
        times = [_resize(platform, path, echo, 30 + 30 * (number % 2)) for number in range(count)]
    finally:
        program.terminate()
        program.wait(20)
    return [
        {"PATCH to in force": name, "resizes": len(times), **spread_ms([pair[at] * 1000 for pair in times])}
        for at, name in enumerate(("from request", "from answer"))
    ]


def _resize(platform: Platform, path: str, echo: Echo, core_limit: int) -> tuple[float, float]:
    time.sleep(PAUSE_SECONDS)
    sent = time.perf_counter()
    claim = platform.granted("PATCH", path, {"core_limit": core_limit})
    answered = time.perf_counter()
    in_force = echo.wait(claim["generation"], seconds=LOST_SECONDS)
    # In force may be seen at the time of the answer or before: the push follows the commit, not the answer.
    return in_force - sent, max(0.0, in_force - answered)


if __name__ == "__main__":
    main()
