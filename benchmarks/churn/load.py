"""Arrivals and machines of a run: the trace's own times, its own nodes.

The trace is a sample of its cluster's load: its requests never occupy more than 70 of the 6,212 GPUs at once, and on
all of them nothing would ever wait. So a run uses a fraction of the nodes, and enough copies of the trace that at load
1 the requests ask for a given share of the GPUs. Each copy keeps the trace's order, gaps and durations and is shifted
by whole days, so that nights stay nights. Load 2 or 3 is the same requests arriving twice or three times as fast, with
unchanged durations. Requests for CPU only are left out, and so are CPU and RAM of the others: a claim requests neither.

The trace names no tenants: requests alike in all fields are one application, and each application belongs to one of
eight tenants, drawn at random. The trace has no time limits: claims with one get one to three times their duration.
"""

import random
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from apps.scheduling.core.values import GpuState, Request
from benchmarks.placement.trace import Ask, Machine, Timed, Trace

DAY_SECONDS = 86_400
# The trace has 25 requests in its first 113 days; those that still run then are present at the beginning.
BEGINS = 113 * DAY_SECONDS
TENANTS = 8
MOST_TIMES_TOO_LONG = 3


@dataclass(frozen=True, slots=True)
class Arrival:
    """A claim to be made; times in seconds from the beginning. `number` is its place in the order of arrival."""

    number: int
    tenant: str
    request: Request
    at: float
    runs_seconds: float
    time_limit_seconds: int | None


@dataclass(frozen=True, slots=True)
class Load:
    """GPUs and arrivals of one run, in order of time; `seconds` is how long claims arrive."""

    gpus: tuple[GpuState, ...]
    arrivals: tuple[Arrival, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class Terms:
    """Parameters of a run: a list, one node in `part`, the percent of GPUs requested at load 1, the load.

    `percent` None: the trace once, as it is. `half` is 1 or 2: the first half of its days alone, or the second.
    """

    list: str
    part: int
    percent: int | None
    load: int
    limits: bool
    half: int | None = None


def draw(trace: Trace, terms: Terms, seed: int) -> Load:
    """Draw the run of a seed: nodes, copies, tenants and time limits."""
    chance = random.Random(f"{seed} {terms.list} {terms.half}")  # noqa: S311 - draws arrivals, guards nothing
    begins, ends, found = _window(trace.timed(terms.list), terms.half)
    gpus = _gpus(_some(trace.machines(), terms.part, chance))
    possible = {gpu.model for gpu in gpus}
    found = [one for one in found if not one.ask.models or possible & set(one.ask.models.split("|"))]
    days = (ends - begins) // DAY_SECONDS
    asked = sum(one.ask.milli / 1000 * (min(one.ends, ends) - one.at) for one in found) / (ends - begins)
    copies = 1 if terms.percent is None else round(len(gpus) * terms.percent / 100 / asked)
    tenants = {one.application: f"tenant-{chance.randrange(TENANTS)}" for one in found}
    rows = []
    for copy in range(copies):
        turned = chance.randrange(days) * DAY_SECONDS if copy else 0
        for one in found:
            at = one.at - begins
            if one.at > begins:
                at = (at + turned) % (ends - begins)
            limit = int((one.ends - one.at) * chance.uniform(1, MOST_TIMES_TOO_LONG)) + 1
            rows.append((at / terms.load, copy, one, limit if terms.limits else None))
    rows.sort(key=lambda row: (row[0], row[1]))
    arrivals = tuple(
        Arrival(number, tenants[one.application], _request(one.ask), at, one.ends - one.at, limit)
        for number, (at, _, one, limit) in enumerate(rows)
    )
    return Load(gpus, arrivals, (ends - begins) / terms.load)


def _window(found: Iterable[Timed], half: int | None) -> tuple[int, int, list[Timed]]:
    """Return the days of the run, and the requests that arrive in them or still run when they begin."""
    kept = [one for one in found if one.ask.gpus and one.ends > one.at]
    begins, ends = BEGINS, max(one.at for one in kept)
    if half is not None:
        middle = begins + (ends - begins) // 2
        begins, ends = (begins, middle) if half == 1 else (middle, ends)
    ends = begins + (ends - begins) // DAY_SECONDS * DAY_SECONDS
    kept = [one._replace(at=max(one.at, begins)) for one in kept if one.ends > begins and one.at < ends]
    return begins, ends, kept


def _some(machines: Sequence[Machine], part: int, chance: random.Random) -> list[Machine]:
    """Draw one machine in `part` of each kind; at least one of each kind."""
    kinds: dict[tuple[str, int], list[Machine]] = defaultdict(list)
    for machine in machines:
        kinds[machine.model, machine.gpus].append(machine)
    some = [machine for kind in kinds.values() for machine in chance.sample(kind, max(1, round(len(kind) / part)))]
    chance.shuffle(some)
    return some


def _gpus(machines: Sequence[Machine]) -> tuple[GpuState, ...]:
    return tuple(
        GpuState(f"node-{node:05}-{index}", f"node-{node:05}", index, machine.model, 0, 100, 0)
        for node, machine in enumerate(machines)
        for index in range(machine.gpus)
    )


def _request(ask: Ask) -> Request:
    return Request(ask.gpus, -(-ask.gpu_milli // 10), 0, ask.models or None)
