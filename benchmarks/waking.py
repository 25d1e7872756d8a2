"""Time until a claim that wakes has its guarantee, measured on its own usage page while others use the GPU."""

import os
import signal
import time
from collections import deque
from typing import NamedTuple

from benchmarks.echo import Echo

# Shares are means over this time: two of the arbiter's windows.
WINDOW_SECONDS = 0.2
EVERY_SECONDS = 0.005
# A running kernel is not preempted, and a window's ends do not coincide with a turn's.
ENOUGH = 0.9
NS_PERCENT = 1e7


def sleep_now(pid: int) -> None:
    """Stop the program: it launches no kernel and its processes stay."""
    os.kill(pid, signal.SIGSTOP)


def go_on(pid: int) -> None:
    """Continue the program."""
    os.kill(pid, signal.SIGCONT)


class Woken(NamedTuple):
    """Seconds to the end of the first window with the guarantee, and its share of the GPU in the first second."""

    seconds: float
    first_second_percent: float


def wake(echo: Echo, pid: int, *, guarantee_percent: float, at_most: float = 10.0) -> Woken:
    """Continue the program, and watch for a second at least.

    Raises TimeoutError. The seconds are never below the window itself.
    """
    before, begun = echo.gpu_time_ns(), time.perf_counter()
    seen = deque([(begun, before)])
    go_on(pid)
    seconds: float | None = None
    first: float | None = None
    while (now := time.perf_counter()) - begun < at_most and (seconds is None or first is None):
        time.sleep(EVERY_SECONDS)
        seen.append((now, echo.gpu_time_ns()))
        while now - seen[1][0] >= WINDOW_SECONDS:
            seen.popleft()
        lasted = now - seen[0][0]
        share = (seen[-1][1] - seen[0][1]) / NS_PERCENT / lasted if lasted >= WINDOW_SECONDS else 0.0
        if seconds is None and share >= guarantee_percent * ENOUGH:
            seconds = now - begun
        if first is None and now - begun >= 1.0:
            first = (seen[-1][1] - before) / NS_PERCENT / (now - begun)
    if seconds is None or first is None:
        raise TimeoutError(f"{guarantee_percent} percent were not there after {at_most} s")
    return Woken(seconds, first)
