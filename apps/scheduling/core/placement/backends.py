"""Back ends of the placement: the C kernel where it is built, else the specification in plain Python.

The kernel works on numpy's arrays, which are loaded with it: web servers place nothing and start without them.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from apps.scheduling.core.placement.policies import Node

if TYPE_CHECKING:
    from apps.scheduling.core.placement.rows import Rows

NAMES = ("auto", "python", "c")


class NotBuilt(Exception):
    """The C kernel was named and is not built."""


def resolve(name: str) -> str:
    """Return the back end that the name means here. Raises ValueError, NotBuilt."""
    if name not in NAMES:
        raise ValueError(f"no such back end: {name}")
    from apps.scheduling.core.placement import native  # noqa: PLC0415 - see above

    if name == "auto":
        return "python" if native.LIBRARY is None else "c"
    if name == "c" and native.LIBRARY is None:
        raise NotBuilt("The placement kernel is not built: make -C apps/scheduling/core/placement/kernel")
    return name


def rows(nodes: Sequence[Node], policy: str, whole: int) -> "Rows | None":
    """Return the kernel's rows for these nodes; None where it is not built or a node has more GPUs than a row holds."""
    from apps.scheduling.core.placement import native  # noqa: PLC0415 - see above
    from apps.scheduling.core.placement.board import WIDEST, Board  # noqa: PLC0415
    from apps.scheduling.core.placement.rows import Rows  # noqa: PLC0415

    if native.LIBRARY is None or max(len(node.gpus) for node in nodes) > WIDEST:
        return None
    return Rows(native.NativeKernel(Board(nodes, policy, whole), native.LIBRARY), draws=policy == "random")
