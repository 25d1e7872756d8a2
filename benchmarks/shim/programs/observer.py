"""The agent's queries of NVML, at the agent's rate. Signals stop, continue and end it.

Prints {"event": "observing"} once NVML is open, and for ``tell`` on its standard input the durations of each query so
far: {"event": "told", "sample": [milliseconds, …], "listed": […], "vitals": […]}. (NVML caches an answer for a moment:
a repeated query takes microseconds.)
"""

import argparse
import json
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from agent.claims import audit
from agent.host import checkup, sampling
from agent.host.gpus import Nvml
from agent.host.health_metrics import HealthReader


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    arguments.add_argument("--nvml", type=Path, help="the library's file (the system's)")
    nvml = Nvml(arguments.parse_args().nvml)
    found = nvml.inventory()
    if found.problem is not None:
        sys.exit(found.problem)
    reader = HealthReader(nvml)
    questions: dict[str, tuple[float, Callable[[], object]]] = {
        "sample": (sampling.TICK_SECONDS, nvml.sample),
        "listed": (audit.LOOK_SECONDS, nvml.list_processes),
        "vitals": (checkup.LOOK_SECONDS, reader.read),
    }
    took: dict[str, list[float]] = {name: [] for name in questions}
    threading.Thread(target=obey, args=(took,), daemon=True).start()
    say({"event": "observing"})
    due = dict.fromkeys(questions, time.monotonic())
    while True:
        name = min(due, key=lambda one: due[one])
        time.sleep(max(0.0, due[name] - time.monotonic()))
        seconds, ask = questions[name]
        begun = time.perf_counter()
        ask()
        took[name].append(1e3 * (time.perf_counter() - begun))
        # Queries missed while stopped are not made up for.
        due[name] = max(due[name] + seconds, time.monotonic())


def obey(took: dict[str, list[float]]) -> None:
    for line in sys.stdin:
        if line.strip() == "tell":
            say({"event": "told", **took})


def say(row: dict[str, object]) -> None:
    print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
