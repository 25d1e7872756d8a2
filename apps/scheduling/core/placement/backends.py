"""Which back end answers: the C kernel where it was built, else numpy.

Both work on numpy's arrays, which are loaded with the first of them: web servers place nothing and start without.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from apps.scheduling.core.placement.policies import Node

if TYPE_CHECKING:
    from apps.scheduling.core.placement.rows import Kernel, Rows

NAMES = ("auto", "python", "numpy", "c")


class NotBuilt(Exception):
    """The C kernel was asked for by name and is not there."""


def chosen(name: str) -> str:
    """The back end that the name means here. Raises ValueError, NotBuilt."""
    if name not in NAMES:
        raise ValueError(f"no such back end: {name}")
    from apps.scheduling.core.placement import native  # noqa: PLC0415 - see above

    if name == "auto":
        return "numpy" if native.LIBRARY is None else "c"
    if name == "c" and native.LIBRARY is None:
        raise NotBuilt("The placement kernel is not built: make -C apps/scheduling/core/placement/kernel")
    return name


def rows(name: str, nodes: Sequence[Node], policy: str, whole: int) -> "Rows | None":
    """Rows for these nodes; None where one has more GPUs than rows can hold."""
    from apps.scheduling.core.placement import native  # noqa: PLC0415 - see above
    from apps.scheduling.core.placement.board import WIDEST, Board  # noqa: PLC0415
    from apps.scheduling.core.placement.rows import Rows  # noqa: PLC0415
    from apps.scheduling.core.placement.vectors import VectorKernel  # noqa: PLC0415

    if max(len(node.gpus) for node in nodes) > WIDEST:
        return None
    board = Board(nodes, policy, whole)
    kernel: Kernel = (
        native.NativeKernel(board, native.LIBRARY) if name == "c" and native.LIBRARY else VectorKernel(board)
    )
    return Rows(kernel, draws=policy == "random")
