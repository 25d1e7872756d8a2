"""Costs of all processes: CPU seconds and memory, by role."""

import asyncio
import time

from benchmarks.api.cpu import seconds_below
from benchmarks.report import Row
from benchmarks.telemetry.memory import mib_below
from benchmarks.telemetry.stage import Stage


def cpu_seconds(ready: Stage) -> dict[str, float]:
    """Return the CPU seconds so far."""
    return {who: seconds_below(pid) for who, pid in ready.pids.items()} | {"generator": time.process_time()}


async def memory(ready: Stage, until: float) -> list[Row]:
    """Return the MiB of each process at the beginning, in ten steps, and at the end."""
    rows, begun = [], time.monotonic()
    step = max(5.0, (until - begun) / 10)
    while time.monotonic() <= until:
        rows.append(
            {
                "second": round(time.monotonic() - begun),
                **{f"{who} MiB": mib_below(pid) for who, pid in ready.pids.items()},
            }
        )
        await asyncio.sleep(min(step, max(0.1, until - time.monotonic())))
    return rows
