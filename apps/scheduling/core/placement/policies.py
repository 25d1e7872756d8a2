"""The policies in plain Python: how good a node is for a request, and which of its GPUs.

Each policy is a function of a node, those of its GPUs that fit, and the request; it returns an integer score and the
GPUs in the node's order. The highest score wins, ties fall to the node's name and, inside a node, to the GPU's index
and uuid (a replaced device has the index of the old one), so that a replay agrees. This is the specification: the fast
back ends compute the same integers.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from apps.scheduling.core.values import GpuState, NodeState, Request

# Scores put one number before another: core before memory. A node's free memory stays far below this many MiB.
BEFORE = 1 << 36


@dataclass(frozen=True, slots=True)
class Node:
    """A machine and its GPUs in order."""

    state: NodeState
    gpus: tuple[GpuState, ...]


Choice = tuple[int, tuple[GpuState, ...]]
Policy = Callable[[Node, Sequence[GpuState], Request], Choice]


def binpack(_node: Node, fitting: Sequence[GpuState], request: Request) -> Choice:
    """The fullest GPUs that fit, so that large holes stay whole: least core left, then least memory."""
    chosen = sorted(fitting, key=lambda gpu: (gpu.core_free, gpu.memory_free_mib))[: request.gpu_count]
    return -sum(gpu.core_free * BEFORE + gpu.memory_free_mib for gpu in chosen), tuple(chosen)


# `gpucloud` places as `binpack` until its own score is here.
POLICIES: dict[str, Policy] = {"gpucloud": binpack, "binpack": binpack}
