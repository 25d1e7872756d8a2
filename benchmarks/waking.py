"""How soon a claim that wakes has its guarantee: measured on its own usage page, while others want the GPU."""

import os
import signal
import time
from collections import deque

from benchmarks.echo import Echo

# Shares are means over so long: two of the arbiter's windows.
WINDOW_SECONDS = 0.2
EVERY_SECONDS = 0.005
# A kernel that has begun is not taken from the GPU, and a window's ends do not fall on a turn's.
ENOUGH = 0.9


def sleep_now(pid: int) -> None:
    """Let the program do nothing: it launches no kernel and its processes stay."""
    os.kill(pid, signal.SIGSTOP)


def go_on(pid: int) -> None:
    """Let the program do what it did."""
    os.kill(pid, signal.SIGCONT)


def wake_seconds(echo: Echo, pid: int, *, guarantee_percent: float, at_most: float = 10.0) -> float:
    """Let the program go on; the time until the end of the first window in which it got its guarantee.

    Raises TimeoutError. The answer is never below the window itself.
    """
    seen: deque[tuple[float, int]] = deque()
    go_on(pid)
    begun = time.perf_counter()
    while (now := time.perf_counter()) - begun < at_most:
        seen.append((now, echo.gpu_time_ns()))
        while now - seen[0][0] > WINDOW_SECONDS + EVERY_SECONDS:
            seen.popleft()
        if now - seen[0][0] >= WINDOW_SECONDS:
            share = (seen[-1][1] - seen[0][1]) / 1e7 / (now - seen[0][0])
            if share >= guarantee_percent * ENOUGH:
                return now - begun
        time.sleep(EVERY_SECONDS)
    raise TimeoutError(f"{guarantee_percent} percent were not there after {at_most} s")
