"""Free capacity, kept apart from the engine: checks the engine's answers, and places by best fit as published."""

from collections.abc import Sequence

import numpy as np

from benchmarks.placement.trace import WHOLE, Ask, Machine


class Wrong(Exception):
    """The engine used capacity that is not free, or refused a request that fits."""


class Room:
    """Free CPU, RAM and GPUs of the nodes; GPUs that a node lacks are never free."""

    def __init__(self, machines: Sequence[Machine]) -> None:
        width = max(machine.gpus for machine in machines)
        self._cpu = np.array([machine.cpu_milli for machine in machines])
        self._ram = np.array([machine.ram_mib for machine in machines])
        self._model = np.array([machine.model for machine in machines])
        there = np.arange(width) < np.array([machine.gpus for machine in machines])[:, None]
        self._gpu = np.where(there, WHOLE, -1)
        self._allowed: dict[str, np.ndarray] = {}

    def fitting(self, ask: Ask) -> np.ndarray:
        """Return the nodes that could carry the request now."""
        fits = (self._cpu >= ask.cpu_milli) & (self._ram >= ask.ram_mib)
        if ask.gpus:
            fits &= (self._gpu >= ask.gpu_milli).sum(1) >= ask.gpus
        if ask.gpus and ask.models:
            if ask.models not in self._allowed:
                self._allowed[ask.models] = np.isin(self._model, ask.models.split("|"))
            fits &= self._allowed[ask.models]
        return np.flatnonzero(fits)

    def take(self, ask: Ask, node: int, gpus: Sequence[int]) -> None:
        """Place the request.

        Raises Wrong if it does not fit there.
        """
        if node not in self.fitting(ask) or len(set(gpus)) != ask.gpus:
            raise Wrong(f"{ask} does not fit on node {node}, GPUs {list(gpus)}")
        if ask.gpus and self._gpu[node, list(gpus)].min() < ask.gpu_milli:
            raise Wrong(f"{ask} was given more than is free on node {node}, GPUs {list(gpus)}")
        self._cpu[node] -= ask.cpu_milli
        self._ram[node] -= ask.ram_mib
        self._gpu[node, list(gpus)] -= ask.gpu_milli

    def refuse(self, ask: Ask) -> None:
        """Record a refusal.

        Raises Wrong if the request fits.
        """
        if len(nodes := self.fitting(ask)):
            raise Wrong(f"{ask} was refused and fits on node {nodes[0]}")

    def best_fit(self, ask: Ask) -> tuple[int, list[int]] | None:
        """Place by best fit as published.

        The node with the least CPU and GPU left, in hundredths, and its fullest GPUs that fit.
        """
        nodes = self.fitting(ask)
        if not len(nodes):
            return None
        idle = np.maximum(self._gpu[nodes], 0).sum(1)
        left = (self._cpu[nodes] - ask.cpu_milli) / 128_000 * 0.5 + (idle - ask.milli) / 8000 * 0.5
        node = int(nodes[((1 - left) * 100).astype(int).argmax()])
        free = self._gpu[node]
        places = [place for place in np.argsort(free, kind="stable").tolist() if free[place] >= ask.gpu_milli]
        return node, sorted(places[: ask.gpus])
