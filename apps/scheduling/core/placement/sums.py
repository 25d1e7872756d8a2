"""Fragmentation with numpy, by sums over the mix: `fragmentation.py` array by array.

Arrays are (nodes, places) or (nodes); the numbers of models, axes and classes are those of `board.Tables`.
"""

import numpy as np
import numpy.typing as npt

from apps.scheduling.core.placement import fragmentation
from apps.scheduling.core.placement.board import UNKNOWN, Board, Int64, Tables
from apps.scheduling.core.placement.rows import Shape

Nodes = npt.NDArray[np.integer]
Bools = npt.NDArray[np.bool_]


class Sums:
    """The mix's sums for one board, and each node's fragmentation where it is `known`."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._tables: Tables | None = None
        self._now: Int64 = np.zeros(len(board.nodes), np.int64)
        self.known: Bools = np.zeros(len(board.nodes), np.bool_)

    def set_mix(self, tables: Tables) -> None:
        """Replace the mix."""
        self._tables = tables
        self._single = tables.single.ravel()
        self.known[:] = False

    def left(self, nodes: Nodes) -> tuple[Int64, Int64, npt.NDArray[np.int32]]:
        """Return free core and memory, and models; a GPU that can take nothing has nothing."""
        board = self._board
        alive = board.alive[nodes].astype(np.int64)
        return board.core[nodes] * alive, board.memory[nodes] * alive, board.model[nodes]

    def best_single(self, shape: Shape, nodes: Nodes, fits: Bools, policy: str) -> tuple[Int64, Bools]:
        """Return the best score for a part of one GPU, among the GPUs that fit, and that GPU."""
        tables = self._mix()
        core, memory, model = self.left(nodes)
        left, less = np.maximum(core - shape.core, 0), memory - shape.memory
        cpu = self._cpu(nodes, shape.cpu)
        as_it_is, after = self._usable(core, memory, model, cpu), self._usable(left, less, model, cpu)
        usable = as_it_is.sum(1, keepdims=True) - as_it_is + after
        for at in range(len(tables.class_core)):
            carries, would = self._carries(at, core, memory, model), self._carries(at, left, less, model)
            n = carries.sum(1, keepdims=True) - carries + would
            there = (core * carries).sum(1, keepdims=True) - core * carries + left * would
            usable += there * tables.several[at][cpu[:, None], n]
        idle = core.sum(1) - shape.core
        fall = self._before(nodes)[:, None] - (idle[:, None] * tables.total - usable)
        if policy == "fgd":
            score = self._bucket(fall)
        else:
            worth = self._worth(nodes, shape, core.sum(1), idle)[:, None]
            score = self._step(fall, tables.prices[model] * shape.core, worth)
        score = np.where(fits, score, np.iinfo(np.int64).min)
        chosen: Bools = np.zeros_like(fits)
        best = score.argmax(1)
        chosen[np.arange(len(nodes)), best] = True
        return score[np.arange(len(nodes)), best], chosen

    def descent(self, shape: Shape, nodes: Nodes, chosen: Bools, policy: str) -> Int64:
        """Return the scores of the nodes with the shape on the chosen GPUs."""
        tables = self._mix()
        core, memory, model = self.left(nodes)
        core, memory = core - chosen * np.int64(shape.core), memory - chosen * np.int64(shape.memory)
        fall = self._before(nodes) - self._fragmentation(core, memory, model, self._cpu(nodes, shape.cpu))
        if policy == "fgd":
            return self._bucket(fall)
        charged = (tables.prices[model] * chosen).sum(1) * shape.core
        idle = core.sum(1)
        return self._step(fall, charged, self._worth(nodes, shape, idle + shape.core * shape.count, idle))

    def _bucket(self, fall: Int64) -> Int64:
        return np.searchsorted(self._mix().buckets, fall, side="right").astype(np.int64)

    def _step(self, fall: Int64, charged: Int64, left: Int64) -> Int64:
        tables, gpu = self._mix(), self._board.whole * self._mix().total
        price = fragmentation.PRICE * charged * tables.total // fragmentation.PRICE_UNIT
        score: Int64 = (fragmentation.STEPS * fall - price - left) // gpu
        return score

    def _worth(self, nodes: Nodes, shape: Shape, before: Int64, idle: Int64) -> Int64:
        """Return the penalty of a node for its remaining room, and for core and CPU that get out of balance."""
        gpu, cpu = self._board.whole * self._mix().total, self._board.cpu[nodes]
        known = cpu != UNKNOWN
        left = np.where(known, cpu - shape.cpu, 0)
        apart = np.where(known, self._imbalance(nodes, idle, left) - self._imbalance(nodes, before, cpu), 0)
        total: Int64 = left * gpu // fragmentation.CPU_MILLI_LEFT + idle * self._mix().total // fragmentation.GPUS_LEFT
        total += fragmentation.IMBALANCE * apart * gpu // fragmentation.PARTS**2
        return total

    def _imbalance(self, nodes: Nodes, idle: Int64, cpu: Int64) -> Int64:
        board = self._board
        count, size = board.count[nodes].astype(np.int64), board.all_cpu[nodes]
        everything, some = count * board.whole, np.maximum(size, 1)
        core = np.minimum(idle, everything) * fragmentation.PARTS // everything
        apart = core - np.clip(cpu, 0, some) * fragmentation.PARTS // some
        known: Int64 = np.where(size > 0, count * apart * apart, 0)
        return known

    def _before(self, nodes: Nodes) -> Int64:
        missing = nodes[~self.known[nodes]]
        if len(missing):
            core, memory, model = self.left(missing)
            self._now[missing] = self._fragmentation(core, memory, model, self._cpu(missing, 0))
            self.known[missing] = True
        return self._now[nodes]

    def _fragmentation(self, core: Int64, memory: Int64, model: npt.NDArray[np.int32], cpu: Int64) -> Int64:
        tables = self._mix()
        usable = self._usable(core, memory, model, cpu).sum(1)
        for at in range(len(tables.class_core)):
            carries = self._carries(at, core, memory, model)
            usable += (core * carries).sum(1) * tables.several[at][cpu, carries.sum(1)]
        result: Int64 = core.sum(1) * tables.total - usable
        return result

    def _usable(self, core: Int64, memory: Int64, model: npt.NDArray[np.int32], cpu: Int64) -> Int64:
        """Return each GPU's core times the weight of the one-GPU types that it could carry."""
        tables = self._mix()
        cell = (model.astype(np.int64) * (len(tables.cpus) + 1) + cpu[:, None]) * (len(tables.cores) + 1)
        cell = (cell + tables.core_index[np.minimum(core, self._board.whole)]) * (len(tables.memories) + 1)
        weight: Int64 = self._single[cell + np.searchsorted(tables.memories, memory, side="right")]
        return core * weight

    def _carries(self, at: int, core: Int64, memory: Int64, model: npt.NDArray[np.int32]) -> Bools:
        tables = self._mix()
        fits: Bools = (core >= tables.class_core[at]) & (memory >= tables.class_memory[at])
        allowed: Bools = tables.class_models[at][model] != 0
        return fits & allowed

    def _cpu(self, nodes: Nodes, less: int) -> Int64:
        cpu, axis = self._board.cpu[nodes], self._mix().cpus
        reached = np.searchsorted(axis, np.where(cpu == UNKNOWN, cpu, cpu - less), side="right")
        return np.where(cpu == UNKNOWN, len(axis), reached)

    def _mix(self) -> Tables:
        assert self._tables is not None
        return self._tables
