"""Loop of PyTorch programs: their commands and their output.

Without ``--seconds`` it takes commands on its standard input, one a line, and answers with JSON lines:

    warm         build the model, run it for a while                      {"event": "ready"}
    run S        iterate for S seconds                                    a row an interval, then {"event": "ran", …}
    count N      iterate N times                                          {"event": "counted", …}
    alternate S W  iterate for S seconds, switched in windows of W seconds      {"event": "alternated", "pairs": …}
    profile S    the same under the profiler, which times every kernel    {"event": "profiled", "share_percent": …, …}
    quit         end (so does the end of the input, and SIGTERM)

A row is {"at": CLOCK_MONOTONIC seconds, "iterations": finished since the command began}. It knows nothing of limits.
With BENCH_DEVICE=cpu in the environment the programs that only need PyTorch run without a GPU, as a test of them.
"""

import argparse
import ctypes
import json
import os
import signal
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import FrameType

import torch
from torch.profiler import ProfilerActivity, profile

DEVICE = os.environ.get("BENCH_DEVICE", "cuda")
# Batches that may be queued: enough that the GPU never waits for Python, few enough that counts are fresh.
DEPTH = 4
WARM_ITERATIONS = 3
# The first and last part of a profile are left out: the profiler starts and ends in them.
PROFILE_LEAD_SECONDS, PROFILE_TAIL_SECONDS = 0.3, 0.05
CLOCKS_APART_SECONDS = 5.0


@dataclass(frozen=True)
class Work:
    """One program's iteration. A batch of them, about a millisecond, is launched between two readings of the clock.

    ``sync``: wait for the GPU after each batch. ``waits``: the step waits itself, in its own way. ``begin`` is called
    before a run's first iteration; the result of ``finish`` after the last is printed with ``ran``. ``release`` frees
    all memory that the steps allocate, before libvcuda's work is turned on or off: what was charged must not be freed
    unseen.
    """

    step: Callable[[], object]
    batch: int = 1
    sync: bool = False
    waits: bool = False
    warm_seconds: float = 1.0
    begin: Callable[[], object] = lambda: None
    finish: Callable[[], dict[str, float]] = dict
    release: Callable[[], object] = lambda: None


class Program:
    """A program with its state."""

    def __init__(self, prepare: Callable[[], Work], interval: float) -> None:
        self._prepare, self._interval = prepare, interval
        self._work: Work | None = None
        self._running = self._ended = False
        signal.signal(signal.SIGTERM, self._end)

    def _end(self, _number: int, _frame: FrameType | None) -> None:
        self._ended = True
        if not self._running:
            sys.exit(0)

    def obey(self, line: str) -> bool:
        """Carry out one command; return False if it is the last."""
        word, _, argument = line.strip().partition(" ")
        if word == "warm":
            self.warm()
        elif word == "run":
            say({"event": "ran", **self.run(float(argument))})
        elif word == "count":
            say({"event": "counted", **self.count(int(argument))})
        elif word == "profile":
            say({"event": "profiled", **self.profile(float(argument))})
        elif word == "alternate":
            seconds, _, window = argument.partition(" ")
            say({"event": "alternated", "pairs": self.alternate(float(seconds), float(window))})
        elif word != "quit":
            say({"event": "unknown", "command": line.strip()})
        return word != "quit" and not self._ended

    def warm(self) -> None:
        self._work = self._prepare()
        for _ in range(WARM_ITERATIONS):
            self._work.step()
        synchronize()
        self.run(self._work.warm_seconds, quiet=True)
        say({"event": "ready", "reserved_bytes": torch.cuda.memory_reserved() if torch.cuda.is_initialized() else 0})

    def run(self, seconds: float, *, quiet: bool = False) -> dict[str, float]:
        """Iterate; print a row an interval unless ``quiet``. Return ``seconds``, ``cpu_seconds`` and ``iterations``."""
        assert self._work is not None, "the first command is warm"
        self._running = True
        marks: deque[tuple[int, torch.cuda.Event]] = deque()
        begin = last = time.monotonic()
        cpu_begin = time.process_time()
        launched = finished = 0
        self._work.begin()
        while (now := time.monotonic()) < begin + seconds and not self._ended:
            for _ in range(self._work.batch):
                self._work.step()
            launched += self._work.batch
            if self._work.sync or self._work.waits or DEVICE == "cpu":
                if not self._work.waits:
                    synchronize()
                finished = launched
            else:
                finished = _mark(marks, launched) or finished
            if now - last >= self._interval and not quiet:
                last = time.monotonic()
                say({"at": round(last, 6), "iterations": finished})
        synchronize()
        self._running = False
        spent = time.process_time() - cpu_begin
        seconds_run = time.monotonic() - begin
        return {"seconds": seconds_run, "cpu_seconds": spent, "iterations": launched, **self._work.finish()}

    def count(self, iterations: int) -> dict[str, float]:
        """Iterate so many times without reading the clock. Return ``seconds`` and ``iterations``."""
        assert self._work is not None, "the first command is warm"
        begin = time.monotonic()
        for _ in range(iterations):
            self._work.step()
        synchronize()
        return {"seconds": time.monotonic() - begin, "iterations": iterations}

    def alternate(self, seconds: float, window: float) -> list[dict[str, list[float]]]:
        """Turn libvcuda's work at launches and waits off and on in turn; return pairs of windows.

        Each window is [seconds an iteration, processor seconds an iteration]; ``off`` and ``on`` change order.
        """
        assert self._work is not None, "the first command is warm"
        switch(on=True)
        found: list[dict[str, list[float]]] = []
        end = time.monotonic() + seconds
        while time.monotonic() < end and not self._ended:
            pair: dict[str, list[float]] = {}
            for name in ("off", "on") if len(found) % 2 else ("on", "off"):
                self._work.release()
                switch(on=name == "on")
                self._work_once()
                ran = self.run(window, quiet=True)
                pair[name] = [ran["seconds"] / ran["iterations"], ran["cpu_seconds"] / ran["iterations"]]
            found.append(pair)
        self._work.release()
        switch(on=True)
        return found

    def _work_once(self) -> None:
        """Iterate once outside of the measured time, after the switch."""
        assert self._work is not None, "the first command is warm"
        self._work.step()
        synchronize()

    def profile(self, seconds: float) -> dict[str, float]:
        """Return the share of time in which a kernel of this process ran on the GPU, by the times of its kernels.

        ``kernel_ns`` is their time over all the ``iterations``, lead and tail included; ``window_begin`` and
        ``window_end`` (CLOCK_MONOTONIC seconds) are the time that ``share_percent`` and ``busy_ns`` are about.
        """
        ahead = time.time_ns() - time.monotonic_ns()
        began = time.monotonic()
        length = PROFILE_LEAD_SECONDS + seconds + PROFILE_TAIL_SECONDS
        try:
            with profile(activities=[ProfilerActivity.CUDA]) as trace:
                ran = self.run(length, quiet=True)
        except Exception:  # noqa: BLE001 - a profiler that cannot start must not cost the program's other figures
            traceback.print_exc(limit=2)
            return {"share_percent": 0.0, "kernels": 0, **self.run(length, quiet=True)}
        # Not trace.events(): that builds an object a kernel, many seconds for short ones.
        results = trace.profiler.kineto_results  # type: ignore[union-attr,unused-ignore]
        spans = [
            (event.start_ns(), event.start_ns() + event.duration_ns())
            for event in results.events()
            # Copies are neither charged nor held up.
            if event.device_type().name == "CUDA" and not event.name().startswith("Memcpy")
        ]
        if not spans:
            return {"share_percent": 0.0, "kernels": 0, **ran}
        first, last = min(start for start, _ in spans), max(end for _, end in spans)
        begin, end = first + int(PROFILE_LEAD_SECONDS * 1e9), last - int(PROFILE_TAIL_SECONDS * 1e9)
        if not 0 <= (begin - ahead) / 1e9 - began < ran["seconds"] + CLOCKS_APART_SECONDS:
            # The profiler uses another clock than assumed: align the first kernel with the start of the run.
            ahead = first - int(began * 1e9)
        busy = union(spans, begin, end)
        return {
            "share_percent": 100 * busy / max(1, end - begin), "kernels": len(spans), "busy_ns": busy,
            "kernel_ns": union(spans, first, last), "window_begin": (begin - ahead) / 1e9,
            "window_end": (end - ahead) / 1e9, **ran,
        }  # fmt: skip


def switch(*, on: bool) -> None:
    """Turn libvcuda's work at launches and waits on or off in this process. What is allocated while it is off must
    be freed before it is on again.

    Raises :class:`RuntimeError` if the library is not there, or does not tell where its state is.
    """
    synchronize()
    library = os.environ.get("BENCH_SWITCH", "")
    if not library or not ctypes.CDLL(library).vcuda_switch(int(on)):
        raise RuntimeError("the library's work cannot be turned off and on")


def synchronize() -> None:
    """Wait for the GPU if PyTorch uses one."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def union(spans: Iterable[tuple[int, int]], begin: int, end: int) -> int:
    """Return the part of [begin, end] that the spans cover together."""
    busy, reached = 0, begin
    for start, stop in sorted(spans):
        start, stop = max(start, reached), min(stop, end)  # noqa: PLW2901 - clipped
        if stop > start:
            busy, reached = busy + stop - start, stop
    return busy


def _mark(marks: "deque[tuple[int, torch.cuda.Event]]", launched: int) -> int:
    """Mark the launched work; if enough is queued, wait for the oldest mark and return the count at that mark."""
    event = torch.cuda.Event()
    event.record()
    marks.append((launched, event))
    if len(marks) <= DEPTH:
        return 0
    count, oldest = marks.popleft()
    oldest.synchronize()
    return count


def say(row: dict[str, object]) -> None:
    print(json.dumps(row), flush=True)


def parser(about: str | None) -> argparse.ArgumentParser:
    """Return the parser of options that every program has."""
    made = argparse.ArgumentParser(description=f"{about}\n{__doc__}", formatter_class=argparse.RawTextHelpFormatter)
    made.add_argument("--seconds", type=float, help="warm up, run for so long, end; 0: until SIGTERM")
    made.add_argument("--interval", type=float, default=0.5, help="seconds between rows (0.5)")
    return made


def serve(options: argparse.Namespace, prepare: Callable[[], Work]) -> None:
    """Take commands, or run as ``--seconds`` says."""
    torch.manual_seed(1)
    program = Program(prepare, options.interval)
    if options.seconds is not None:
        program.obey("warm")
        program.obey(f"run {options.seconds or 1e9}")
        return
    say({"event": "imported", "torch": torch.__version__})
    for line in sys.stdin:
        if not program.obey(line):
            break
