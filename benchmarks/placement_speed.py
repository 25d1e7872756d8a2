"""`python -m benchmarks.placement_speed`: decisions of the placement core on 5,000 nodes of 8 GPUs, on one core.

The fleet is filled until a twentieth is idle, and then churns: as many claims are released, at random, as are placed.
*single* times each answer of `Fleet.place` alone; its rate includes recording placements and releases. *batch* places
500 at a time with `Fleet.place_many`, after 500 were released: its rate includes both. Requests have 23 shapes: parts
of a GPU, whole ones, two to eight of a node, and parts for one of the three models.
"""

import argparse
import gc
import random
import time
from dataclasses import dataclass, field

from apps.scheduling.core.fleet import Fleet
from apps.scheduling.core.values import GpuState, Placed, Request
from benchmarks.report import Row, print_report, quantile

NODES, GPUS = 5000, 8
MODELS = (("A100", 81_920), ("H100", 81_920), ("L40S", 49_152))
IDLE_SHARE = 0.05
BATCH = 500


def shapes() -> list[tuple[Request, int]]:
    """Return requests and their frequencies, of a hundred."""
    parts = [(10, 4096, 8), (20, 8192, 10), (25, 16_384, 8), (30, 16_384, 8), (50, 24_576, 12), (50, 40_960, 6)]
    many = [(1, 100, 40_960, 20), (2, 100, 40_960, 3), (4, 100, 40_960, 2), (8, 100, 40_960, 1), (2, 50, 16_384, 2)]
    rows = [(Request(1, core, memory), weight) for core, memory, weight in parts]
    rows += [(Request(count, core, memory), weight) for count, core, memory, weight in many]
    for model, _ in MODELS:
        rows += [(Request(1, core, memory, model), weight // 4) for core, memory, weight in parts[1:5]]
    return [(request, weight) for request, weight in rows if weight]


class Clock:
    """Wall-clock time, or this thread's processor time, which other users of the machine do not affect."""

    seconds, nanoseconds = staticmethod(time.perf_counter), staticmethod(time.perf_counter_ns)

    def of_the_processor(self) -> None:
        self.seconds, self.nanoseconds = time.thread_time, time.thread_time_ns


CLOCK = Clock()


@dataclass
class Churn:
    """A fleet and the claims on it."""

    fleet: Fleet
    draw: random.Random
    on: list[tuple[tuple[str, ...], Request]] = field(default_factory=list)
    refused: int = 0

    def __post_init__(self) -> None:
        self.requests, self.weights = zip(*shapes(), strict=True)

    def next_requests(self, count: int) -> list[Request]:
        """Return the next requests; each is learned."""
        requests = self.draw.choices(self.requests, self.weights, k=count)
        for request in requests:
            self.fleet.learn(request)
        return requests

    def take_leaving(self, count: int) -> list[tuple[tuple[str, ...], Request]]:
        """Take some claims off the list."""
        gone = []
        for _ in range(min(count, len(self.on))):
            at = self.draw.randrange(len(self.on))
            self.on[at], self.on[-1] = self.on[-1], self.on[at]
            gone.append(self.on.pop())
        return gone

    def single(self, count: int) -> tuple[list[float], float]:
        """Return microseconds of each answer, and seconds of it all."""
        took, requests, leaving = [], self.next_requests(count), self.take_leaving(count)
        begun = CLOCK.seconds()
        for request, (gpus, gone) in zip(requests, leaving, strict=True):
            self.fleet.give_back(gpus, gone)
            asked = CLOCK.nanoseconds()
            answer = self.fleet.place(request)
            took.append((CLOCK.nanoseconds() - asked) / 1000)
            if isinstance(answer, Placed):
                self.fleet.take(answer.gpus, request)
                self.on.append((answer.gpus, request))
            else:
                self.refused += 1
        return took, CLOCK.seconds() - begun

    def batch(self, count: int) -> float:
        """Return the seconds to release and to place a batch."""
        requests, leaving = self.next_requests(count), self.take_leaving(count)
        begun = CLOCK.seconds()
        self.fleet.give_back_many(leaving)
        answers = self.fleet.place_many(requests)
        seconds = CLOCK.seconds() - begun
        for request, answer in zip(requests, answers, strict=True):
            if isinstance(answer, Placed):
                self.on.append((answer.gpus, request))
            else:
                self.refused += 1
        return seconds


def fill_fleet(backend: str, policy: str, seed: int, nodes: int) -> tuple[Churn, Row]:
    """Fill a fleet until a twentieth of its core is idle; return it and its rate."""
    gpus = [
        GpuState(f"GPU-{node:04}-{index}", f"node-{node:04}", index, model, memory, 100, memory)
        for node in range(nodes)
        for model, memory in [MODELS[node % len(MODELS)]]
        for index in range(GPUS)
    ]
    churn = Churn(Fleet(gpus, policy=policy, backend=backend), random.Random(seed))  # noqa: S311 - to be repeated
    full, taken, decisions, seconds = len(gpus) * 100, 0, 0, 0.0
    while taken < full * (1 - IDLE_SHARE) and churn.refused < BATCH:
        before = len(churn.on)
        seconds += _fill(churn)
        decisions += BATCH
        taken += sum(len(placed) * request.core_request for placed, request in churn.on[before:])
    return churn, {"phase": "fill", "decisions a second": decisions / seconds, "p50 µs": "", "p90 µs": "", "p99 µs": ""}


def _fill(churn: Churn) -> float:
    requests = churn.next_requests(BATCH)
    begun = CLOCK.seconds()
    answers = churn.fleet.place_many(requests)
    seconds = CLOCK.seconds() - begun
    for request, answer in zip(requests, answers, strict=True):
        if isinstance(answer, Placed):
            churn.on.append((answer.gpus, request))
        else:
            churn.refused += 1
    return seconds


def measure(backend: str, policy: str, run: int, decisions: int, nodes: int) -> list[Row]:
    """Measure one run: fill, single, batch."""
    churn, fill = fill_fleet(backend, policy, run, nodes)
    gc.freeze()  # the collector must not scan tens of thousands of claims again and again
    for _ in range(4):
        churn.single(BATCH)  # caches each shape before the measurement
    churn.refused = 0
    took: list[float] = []
    seconds = 0.0
    for _ in range(decisions // BATCH):
        some, lasted = churn.single(BATCH)
        took += some
        seconds += lasted
    refused = churn.refused / decisions * 100
    batches = sum(churn.batch(BATCH) for _ in range(decisions // BATCH))
    idle = sum(gpu.core_free for gpu in churn.fleet.gpus()) / (nodes * GPUS)
    facts = {"back end": churn.fleet.backend, "policy": policy, "run": run}
    return [
        {**facts, **fill, "refused %": "", "idle %": ""},
        {
            **facts,
            "phase": "single",
            "decisions a second": decisions / seconds,
            **{f"p{share} µs": quantile(took, share / 100) for share in (50, 90, 99)},
            "refused %": refused,
            "idle %": idle,
        },
        {
            **facts,
            "phase": "batch",
            "decisions a second": decisions // BATCH * BATCH / batches,
            "p50 µs": "", "p90 µs": "", "p99 µs": "", "refused %": "", "idle %": "",
        },
    ]  # fmt: skip


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="placement_speed", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--backends", nargs="+", default=["c", "python"], help="of c, python (c python)")
    parser.add_argument("--policies", nargs="+", default=["gpucloud"], help="(gpucloud)")
    parser.add_argument("--runs", type=int, default=3, help="(3)")
    parser.add_argument("--decisions", type=int, default=100_000, help="of each run, in Python a hundredth (100000)")
    parser.add_argument("--nodes", type=int, default=NODES, help=f"of {GPUS} GPUs ({NODES})")
    parser.add_argument("--processor-time", action="store_true", help="this thread's, for a machine that is not idle")
    asked = parser.parse_args()
    if asked.processor_time:
        CLOCK.of_the_processor()
    rows: list[Row] = []
    for backend in asked.backends:
        decisions = asked.decisions if backend == "c" else asked.decisions // 100
        for policy in asked.policies:
            for run in range(1, asked.runs + 1):
                rows += measure(backend, policy, run, decisions, asked.nodes)
    print_report("placement-speed", rows)


if __name__ == "__main__":
    main()
