"""Which back end answers: the C kernel where it was built, else numpy."""

from collections.abc import Sequence

from apps.scheduling.core.placement import native
from apps.scheduling.core.placement.board import WIDEST, Board
from apps.scheduling.core.placement.policies import Node
from apps.scheduling.core.placement.rows import Kernel, Rows
from apps.scheduling.core.placement.vectors import VectorKernel

NAMES = ("auto", "python", "numpy", "c")


class NotBuilt(Exception):
    """The C kernel was asked for by name and is not there."""


def chosen(name: str) -> str:
    """The back end that the name means here. Raises ValueError, NotBuilt."""
    if name not in NAMES:
        raise ValueError(f"no such back end: {name}")
    if name == "auto":
        return "numpy" if native.LIBRARY is None else "c"
    if name == "c" and native.LIBRARY is None:
        raise NotBuilt("The placement kernel is not built: make -C apps/scheduling/core/placement/kernel")
    return name


def rows(name: str, nodes: Sequence[Node], policy: str, whole: int) -> Rows | None:
    """Rows for these nodes; None where one has more GPUs than rows can hold."""
    if max(len(node.gpus) for node in nodes) > WIDEST:
        return None
    board = Board(nodes, policy, whole)
    kernel: Kernel = (
        native.NativeKernel(board, native.LIBRARY) if name == "c" and native.LIBRARY else VectorKernel(board)
    )
    return Rows(kernel, draws=policy == "random")
