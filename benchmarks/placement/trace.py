"""The trace: a cluster's nodes, and lists of requests.

The data is not the project's. It is Alibaba's openb trace (cluster-trace-gpu-v2023), its lists and the authors' results
as published in hkust-adsl/kubernetes-scheduler-simulator for Weng et al., USENIX ATC 2023.
"""

import csv
import json
import os
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

NODES, LIST, RESULTS = "openb_node_list_gpu_node.csv", "openb_pod_list_", "published_allocation.csv"
# Requests arrive until they ask for this share of all GPUs.
ARRIVING_PERCENT = 130
WHOLE = 1000
# Policies as the published table names them.
PUBLISHED = {"Random": "random", "BestFit": "best-fit", "FGD": "fgd"}


class Ask(NamedTuple):
    """A request of the trace; `models` joined by `|`, empty for any."""

    cpu_milli: int
    ram_mib: int
    gpus: int
    gpu_milli: int
    models: str

    @property
    def milli(self) -> int:
        """Return thousandths on all its GPUs together."""
        return self.gpus * self.gpu_milli


class Machine(NamedTuple):
    """A node of the trace, empty."""

    cpu_milli: int
    ram_mib: int
    gpus: int
    model: str


class Timed(NamedTuple):
    """A request with its times, in seconds of the trace's clock; requests with equal fields are one application's."""

    ask: Ask
    application: str
    at: int
    ends: int


class Draw(NamedTuple):
    """Random draw of one seed: the nodes in the order that breaks ties, and the requests as they arrive."""

    order: list[Machine]
    arriving: list[Ask]


@dataclass(frozen=True)
class Trace:
    """The directory with the data."""

    at: Path

    @classmethod
    def found(cls) -> "Trace":
        """Return the trace at `GPUCLOUD_TRACES`.

        Raises SystemExit naming what is missing.
        """
        at = os.environ.get("GPUCLOUD_TRACES")
        source = "the openb trace (cluster-trace-gpu-v2023), as in hkust-adsl/kubernetes-scheduler-simulator, data/csv"
        if not at:
            raise SystemExit(f"GPUCLOUD_TRACES names no directory. It must hold {NODES} and {LIST}*.csv of {source}")
        if not (Path(at) / NODES).is_file() or not list(Path(at).glob(f"{LIST}*.csv")):
            raise SystemExit(f"{at} (GPUCLOUD_TRACES) lacks {NODES} or any {LIST}*.csv. They are of {source}")
        return cls(Path(at))

    def lists(self) -> list[str]:
        """Return the names of all lists."""
        return sorted(path.stem.removeprefix(LIST) for path in self.at.glob(f"{LIST}*.csv"))

    def machines(self) -> list[Machine]:
        """Return the nodes with GPUs."""
        return list(self._machines().values())

    def asks(self, name: str) -> list[Ask]:
        """Return the requests of a list, in an order that is independent of the file's."""
        return sorted(_ask(row) for row in self._rows(f"{LIST}{name}.csv"))

    def timed(self, name: str) -> list[Timed]:
        """Return the requests of a list with their times.

        Raises SystemExit if the list has none.
        """
        rows = list(self._rows(f"{LIST}{name}.csv"))
        if "creation_time" not in rows[0]:
            raise SystemExit(f"The list {name} has no times")
        return sorted(
            Timed(ask, f"{ask} {row['qos']}", int(row["creation_time"]), int(row["deletion_time"]))
            for row in rows
            for ask in [_ask(row)]
        )

    def published(self) -> dict[tuple[str, str, int], float]:
        """Return the mean of the authors' seeds by (list, policy, percent arrived); nothing if the file is missing."""
        if not (self.at / RESULTS).is_file():
            return {}
        seen: dict[tuple[str, str, int], list[float]] = {}
        for row in self._rows(RESULTS):
            for column, value in row.items():
                if column.startswith("arrived_") and row["policy"] in PUBLISHED:
                    name = row["workload"].removeprefix(LIST), PUBLISHED[row["policy"]], int(column[8:])
                    seen.setdefault(name, []).append(float(value))
        return {key: sum(values) / len(values) for key, values in seen.items()}

    def recorded(self, path: Path) -> dict[tuple[str, int], Draw]:
        """Return draws made elsewhere, by (list, seed).

        The file has JSON lines of `list`, `seed`, `nodes` and `requests`, by name.
        """
        machines, found = self._machines(), {}
        for line in path.read_text().splitlines():
            one = json.loads(line)
            named = {row["name"]: _ask(row) for row in self._rows(f"{LIST}{one['list']}.csv")}
            order, arriving = [machines[sn] for sn in one["nodes"]], [named[name] for name in one["requests"]]
            found[one["list"], one["seed"]] = Draw(order, arriving)
        return found

    def _machines(self) -> dict[str, Machine]:
        return {
            row["sn"]: Machine(int(row["cpu_milli"]), int(row["memory_mib"]), int(row["gpu"]), row["model"])
            for row in self._rows(NODES)
        }

    def _rows(self, name: str) -> Iterator[dict[str, str]]:
        with (self.at / name).open(newline="") as file:
            yield from csv.DictReader(file)


def _ask(row: Mapping[str, str]) -> Ask:
    cpu, ram, gpus, milli = (int(row[name]) for name in ("cpu_milli", "memory_mib", "num_gpu", "gpu_milli"))
    return Ask(cpu, ram, gpus, milli, row.get("gpu_spec") or "")


def draw(machines: Sequence[Machine], asks: Sequence[Ask], seed: int) -> Draw:
    """Return the nodes in the run's order and the arrivals.

    The arrivals are the list once, shuffled, then drawn from it with replacement. As the authors do, the stop condition
    adds one GPU of the next request, not all of its GPUs.
    """
    chance = random.Random(seed)  # noqa: S311  # draws arrivals, guards nothing
    order = list(machines)
    chance.shuffle(order)
    arriving = list(asks)
    chance.shuffle(arriving)
    most = sum(machine.gpus for machine in machines) * WHOLE * ARRIVING_PERCENT // 100
    milli = sum(ask.milli for ask in arriving)
    while milli > most:
        milli -= arriving.pop(chance.randrange(len(arriving))).milli
    while True:
        ask = asks[chance.randrange(len(asks))]
        if milli + ask.gpu_milli > most:
            return Draw(order, arriving)
        milli += ask.milli
        arriving.append(ask)
