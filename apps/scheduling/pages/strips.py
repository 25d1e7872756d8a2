"""A large fleet drawn small: a strip for each node, in it a column for each GPU, ten units wide and high.

Paths, as a shape for each GPU would be too many; and texts, as a template takes longer to ask for a thing than to show
it.
"""

from collections.abc import Sequence
from typing import Final, TypedDict

from django.urls import reverse
from django.utils.translation import gettext as _

from apps.nodes.models import Node
from apps.scheduling.pages.fleet import Cell
from gpucloud.web.tags import percent

# Nodes that fit on a screen or two with a number at each GPU.
MOST_LARGE: Final = 12


class Strip(TypedDict):
    """A node, as a template finds things the fastest. `state` is empty where it is ready."""

    name: str
    url: str
    state: str
    # The rest says nothing where there is no GPU. Paths: all of each GPU, what is promised of it, what is used of it.
    width: int
    ground: str
    leased: str
    used: str
    # Means of its GPUs.
    core_leased: str
    core_used: str


def strips_of(nodes: Sequence[tuple[Node, list[Cell]]]) -> list[Strip]:
    """Nothing where the nodes are few enough to be drawn large."""
    if len(nodes) <= MOST_LARGE:
        return []
    known, unknown = _("%(used)s used"), _("no data")
    return [_strip(node, cells, known, unknown) for node, cells in nodes]


def _strip(node: Node, cells: list[Cell], known: str, unknown: str) -> Strip:
    leased, used = [cell.leased for cell in cells], [cell.used for cell in cells]
    heard = [part for part in used if part is not None]
    state = node.state
    return {
        "name": node.name,
        "url": reverse("node", args=[node.name]),
        "state": "" if state == "ready" else state,
        "width": 10 * len(cells),
        "ground": _path(9, [100] * len(cells)),
        "leased": _path(9, leased),
        "used": _path(5, [part or 0 for part in used]),
        "core_leased": percent(sum(leased) / len(leased)) if leased else "",
        "core_used": known % {"used": percent(sum(heard) / len(heard))} if heard else unknown,
    }


def _path(width: int, heights: Sequence[float]) -> str:
    left = (9 - width) // 2
    return "".join(
        f"M{10 * at + left} 10h{width}v-{height / 10:.1f}h-{width}z" for at, height in enumerate(heights) if height
    )
