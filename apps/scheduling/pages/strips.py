"""A large fleet drawn small: a strip for each node, in it a column for each GPU, ten units wide and high.

Paths, as a shape for each GPU would be too many; and texts, as a template takes longer to ask for a thing than to show
it.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from django.urls import reverse
from django.utils.translation import gettext as _

from apps.nodes.models import Node
from apps.scheduling.pages.fleet import Cell
from gpucloud.web.tags import percent

# Nodes that fit on a screen or two with a number at each GPU.
MOST_LARGE: Final = 12


class Strip(NamedTuple):
    """A node. `state` is empty where it is ready; all but the first three are where it has no GPU."""

    name: str
    url: str
    state: str
    width: int = 0
    # Paths: all of each GPU, what is promised of it, what is used where that is known.
    ground: str = ""
    leased: str = ""
    used: str = ""
    # Means of its GPUs.
    core_leased: str = ""
    core_used: str = ""


def strips_of(nodes: Sequence[tuple[Node, list[Cell]]]) -> list[Strip]:
    """Nothing where the nodes are few enough to be drawn large."""
    if len(nodes) <= MOST_LARGE:
        return []
    known, unknown = _("%(used)s used"), _("no data")
    return [_strip(node, cells, known, unknown) for node, cells in nodes]


def _strip(node: Node, cells: list[Cell], known: str, unknown: str) -> Strip:
    state = "" if node.state == "ready" else node.state
    named = Strip(node.name, reverse("node", args=[node.name]), state)
    if not cells:
        return named
    heard = [cell.used for cell in cells if cell.used is not None]
    return named._replace(
        width=10 * len(cells),
        ground=_path(9, [100] * len(cells)),
        leased=_path(9, [cell.leased for cell in cells]),
        used=_path(5, [cell.used or 0 for cell in cells]),
        core_leased=percent(sum(cell.leased for cell in cells) / len(cells)),
        core_used=known % {"used": percent(sum(heard) / len(heard))} if heard else unknown,
    )


def _path(width: int, heights: Sequence[float]) -> str:
    left = (9 - width) / 2
    return "".join(
        f"M{10 * at + left:g} 10h{width}v-{height / 10:.1f}h-{width}z" for at, height in enumerate(heights) if height
    )
