"""Estimated power of the trace's cluster, by the model of PWR+FGD (Lettich et al., CCGrid 2025, arXiv 2412.17484).

A GPU of which any part is allocated draws its full power, another one its idle power. Two of a node's CPUs are a core;
as many packages draw full power as its allocated cores fill, the others idle power. Watts are those of the
paper's code (Fr4nz83/PWR-plugin-kubernetes, `pkg/type/open-gpu-share/utils/const.go`), and so are the models: G2 counts
as A10 and G3 as A100. They are apart from the engine's own table, which knows no CPU models.
"""

from collections.abc import Sequence
from math import ceil, floor
from typing import Final, NamedTuple

from benchmarks.placement.trace import WHOLE, Ask, Machine


class Package(NamedTuple):
    """A CPU package: its cores, and its idle and full watts."""

    cores: int
    idle: int
    full: int


GPUS: Final = {
    "T4": (10, 70), "A10": (30, 150), "G2": (30, 150), "P100": (25, 250), "V100M16": (30, 300), "V100M32": (30, 300),
    "A100": (50, 400), "G3": (50, 400),
}  # fmt: skip
E5_2682, X8163, X6326, X8369B = Package(16, 15, 120), Package(24, 20, 165), Package(16, 20, 185), Package(32, 20, 270)
PACKAGES: Final = {
    "T4": X8163, "P100": E5_2682, "V100M16": X6326, "V100M32": X6326, "A10": X8369B, "G2": X8369B, "A100": X8369B,
    "G3": X8369B,
}  # fmt: skip


class Meter:
    """The power of all nodes while requests are placed."""

    def __init__(self, machines: Sequence[Machine]) -> None:
        self._machines = machines
        self._cpu = [machine.cpu_milli for machine in machines]
        self._gpus = [[WHOLE] * machine.gpus for machine in machines]
        self._of = [self._node(number) for number in range(len(machines))]
        self.watts = sum(self._of)

    def take(self, ask: Ask, node: int, gpus: Sequence[int]) -> None:
        """Count the request on this node."""
        self._cpu[node] -= ask.cpu_milli
        for place in gpus:
            self._gpus[node][place] -= ask.gpu_milli
        before, self._of[node] = self._of[node], self._node(node)
        self.watts += self._of[node] - before

    def _node(self, number: int) -> int:
        machine = self._machines[number]
        idle, full = GPUS[machine.model]
        unused = sum(free == WHOLE for free in self._gpus[number])
        package = PACKAGES[machine.model]
        cores = ceil(machine.cpu_milli / 2000)
        packages = ceil(cores / package.cores)
        active = ceil((cores - floor(self._cpu[number] / 2000)) / package.cores)
        return (
            unused * idle + (machine.gpus - unused) * full + active * package.full + (packages - active) * package.idle
        )
