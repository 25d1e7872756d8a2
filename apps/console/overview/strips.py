"""A large fleet drawn small: a strip per node with a column per GPU, ten units wide and high.

Paths, as a shape for each GPU would be too many; and rendered here, as a template takes longer to look a value up than
to show it.
"""

from collections.abc import Sequence
from typing import Final

from django.urls import reverse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from apps.console.overview.fleet_map import Cell, Fleet
from apps.nodes.models import Node
from gpucloud.web.tags import percent
from gpucloud.web.tags import state as state_label

# Nodes that fit on a screen or two with a number at each GPU.
MOST_LARGE: Final = 12
STRIP: Final = '<li><a class="strip" href="{}"><span class="strip-name">{}</span> {} {}</a></li>'
# With GPUs: the whole of each, its allocation, its use; and means of all.
COLUMNS: Final = """\
<svg viewBox="0 0 {} 10" preserveAspectRatio="none" aria-hidden="true">\
<path class="cell-ground" d="{}" /><path class="cell-leased" d="{}" /><path class="cell-used" d="{}" /></svg>
<span class="strip-number">{} <span class="visually-hidden">{}</span><small>{}</small></span>"""
NO_COLUMNS: Final = '<span class="strip-number"><small>{}</small></span>'


def strips_of(fleet: Fleet) -> SafeString:
    """Return the items of a list; nothing if the nodes are few enough to be drawn large."""
    if fleet.node_count <= MOST_LARGE:
        return SafeString()
    return format_html_join("\n", STRIP, (_strip(node, cells) for node, cells in fleet.nodes))


def _strip(node: Node, cells: list[Cell]) -> tuple[str, ...]:
    shown = state_label(node.state, node.drain_progress) if node.state != "ready" else ""
    return reverse("node", args=[node.name]), node.name, shown, _columns(cells) if cells else _no_columns()


def _no_columns() -> SafeString:
    return format_html(NO_COLUMNS, _("No GPUs yet: the agent has not connected."))


def _columns(cells: list[Cell]) -> SafeString:
    leased, used = [cell.leased for cell in cells], [cell.used for cell in cells]
    heard = [part for part in used if part is not None]
    return format_html(
        COLUMNS,
        10 * len(cells),
        _path(9, [100] * len(cells)),
        _path(9, leased),
        _path(5, [part or 0 for part in used]),
        percent(sum(leased) / len(leased)),
        _("of core allocated,"),
        _("%(used)s used") % {"used": percent(sum(heard) / len(used))} if heard else _("no data"),
    )


def _path(width: int, heights: Sequence[float]) -> str:
    left = (9 - width) // 2
    return "".join(
        f"M{10 * at + left} 10h{width}v-{height / 10:.1f}h-{width}z" for at, height in enumerate(heights) if height
    )
