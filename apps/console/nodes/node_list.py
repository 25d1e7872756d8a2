"""The lists of nodes and of GPUs. Operators only."""

from functools import partial
from typing import Any

from django.db.models import Count, Exists, F, OuterRef, Q, Subquery, Sum, Value
from django.db.models.functions import Coalesce
from django.db.models.lookups import Exact, In
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from apps.console.shell.export import facts_of
from apps.console.shell.lists.bulk import Action, NothingToDo
from apps.console.shell.lists.columns import SavedView, column, number, rank
from apps.console.shell.lists.filters import (
    MOST_CHOICES,
    Choice,
    Flag,
    Labelled,
    ListFilter,
    Named,
    Search,
    Text,
    pools,
)
from apps.console.shell.lists.views import ListPage
from apps.console.shell.measurements import watts_of_gpus
from apps.nodes.models import Gpu, Node
from apps.nodes.models.gpu import WHOLE
from apps.nodes.models.node import STATES, state_now
from apps.nodes.services.nodes import change_node
from apps.quotas.models import Pool
from apps.quotas.principals import Principal
from apps.scheduling.services.reclaiming.draining import attach_progress, drain_node, leaving
from gpucloud.web.badges import badge
from gpucloud.web.keyset import Key

CARRYING = Gpu.objects.filter(Q(core_used__gt=0) | Q(memory_used_mib__gt=0), node=OuterRef("pk"))
PROBLEMS = ("lost", "fenced", "unhealthy")


def _state_is(state: str) -> Any:
    return Exact(state_now(), Value(state))


def _of_gpus(number: Any) -> Coalesce:
    """Return a sum over the node's present GPUs, as a key of the order."""
    gpus = Gpu.objects.filter(node=OuterRef("pk"), present=True).order_by().values("node")
    return Coalesce(Subquery(gpus.annotate(number=number).values("number")), 0)


class NodeFilter(ListFilter):
    """The filters of nodes."""

    folded = ("label", "idle")
    q = Search("name", "hostname", placeholder=_("name or host"))
    state = Choice(
        _("State"),
        {"problems": (_("Problems"), lambda: In(state_now(), PROBLEMS))}
        | {state: (badge(state).label, partial(_state_is, state)) for state in STATES},
    )
    pool = pools()
    label = Labelled("labels")
    idle = Flag(_("Without claims"), ~Exists(CARRYING))


class NodeList(ListPage):
    """Every node with its allocation, those with problems first."""

    model, filters, template_name = Node, NodeFilter, "nodes/list.html"
    title, subtitle = _("Nodes"), _("GPU nodes")
    operators_only, shared, refresh_seconds, pick_field = True, True, 5, "name"
    first = (rank(STATES, state_now()), Key(F("natural_name")))
    columns = [
        column(_("Node"), "name", Key(F("natural_name"), nullable=False)),
        column(_("State"), "state", rank(STATES, state_now()), F("natural_name")),
        number(_("GPUs"), "gpus", _of_gpus(Count("pk"))),
        column(_("Core allocated"), "core", _of_gpus(Sum("core_used")), word="leased"),
        column(_("Memory allocated"), "memory", _of_gpus(Sum("memory_used_mib")), css="wide", word="leased"),
        number(_("Last heartbeat"), "seen", "last_seen_at", css="wide num", word="heartbeat"),
    ]
    views = [
        SavedView(_("All")),
        SavedView(_("Problems"), "state=problems"),
        SavedView(_("Draining"), "state=draining"),
        SavedView(_("Cordoned"), "state=cordoned"),
        SavedView(_("Without claims"), "idle=1"),
    ]
    file = ("nodes", [
        "node", "pool", "state", "gpu_count", "core_leased", "core_total", "memory_leased", "memory_total",
        "agent_version", "last_seen_at",
    ])  # fmt: skip

    def with_details(self, rows: Any) -> Any:
        """Add the capacity and the allocation."""
        present = Q(gpus__present=True)
        return rows.defer("labels", "drifts", "checks").prefetch_related("pool").annotate(
            gpu_count=Count("gpus", filter=present),
            core_total=Count("gpus", filter=present) * WHOLE,
            core_leased=Sum("gpus__core_used", filter=present, default=0),
            memory_leased=Sum("gpus__memory_used_mib", filter=present, default=0),
            memory_total=Sum("gpus__memory_mib", filter=present, default=0),
        )  # fmt: skip

    def present(self, rows: list[Any]) -> list[Any]:
        """Add the progress of drains."""
        attach_progress(rows)
        return rows

    def facts(self, row: Any) -> Any:
        """Return the node with its pool's name."""
        return facts_of(row, self.file[1], node=row.name, pool=row.pool.name)

    def actions(self) -> list[Action]:
        """Return cordon, uncordon, drain, and one move for each pool."""
        act = self.principal
        moves = [
            Action(f"pool:{pool.name}", gettext("Move to pool {0}").format(pool), partial(_move, act, pool))
            for pool in Pool.objects.order_by("name")[:MOST_CHOICES]
        ]
        return [
            Action("cordon", _("Cordon"), partial(_cordon, act)),
            Action("uncordon", _("Uncordon"), partial(_uncordon, act)),
            Action("drain", _("Drain"), partial(_drain, act)),
            *moves,
        ]


def _cordon(principal: Principal, node: Node, versions: frozenset[int] | None) -> str:
    if node.cordoned:
        raise NothingToDo(gettext("It is cordoned already."))
    change_node(principal=principal, node=node, versions=versions, cordoned=True)
    return gettext("It takes no new claims; those on it stay.")


def _uncordon(principal: Principal, node: Node, versions: frozenset[int] | None) -> str:
    if not node.cordoned:
        raise NothingToDo(gettext("It is not cordoned."))
    change_node(principal=principal, node=node, versions=versions, cordoned=False)
    return gettext("It takes new claims again.")


def _drain(principal: Principal, node: Node, versions: frozenset[int] | None) -> str:
    if node.draining_at is not None:
        raise NothingToDo(gettext("It is being drained already."))
    claims = leaving(Node.objects.filter(pk=node.pk)).count()
    drain_node(principal=principal, node=node, versions=versions)
    said = ngettext(
        "It is cordoned; {0} claim gets notice and leaves.", "It is cordoned; {0} claims get notice and leave.", claims
    )
    return said.format(claims)


def _move(principal: Principal, pool: Pool, node: Node, versions: frozenset[int] | None) -> str:
    if node.pool_id == pool.pk:
        raise NothingToDo(gettext("It is in pool {0} already.").format(pool))
    former = node.pool.name
    change_node(principal=principal, node=node, versions=versions, pool=pool)
    return gettext("Pool {0} → {1}").format(former, pool)


class GpuFilter(ListFilter):
    """The filters of GPUs."""

    folded = ("model", "label", "idle")
    q = Search("node__name", "model", "uuid", placeholder=_("node, model or uuid"))
    state = Choice(
        _("State"),
        {
            "problems": (_("Problems"), ~Q(unhealthy="") | Q(present=False)),
            "unhealthy": (badge("unhealthy").label, ~Q(unhealthy="") & Q(present=True, cordoned=False)),
            "missing": (_("Missing"), Q(present=False)),
            "cordoned": (badge("cordoned").label, Q(cordoned=True, present=True)),
            "ready": (badge("ready").label, Q(unhealthy="", present=True, cordoned=False)),
        },
    )
    pool = pools("node__pool")
    node = Named(_("Node"), "node", lambda principal: Node.objects.order_by(F("natural_name")))
    model = Text(_("Model"), "model__icontains")
    label = Labelled("node__labels")
    idle = Flag(_("Without claims"), Q(core_used=0, memory_used_mib=0))


class GpuList(ListPage):
    """Every GPU with its allocation, those with problems first."""

    model, filters, template_name = Gpu, GpuFilter, "gpus/list.html"
    title, subtitle = _("GPUs"), _("Devices of the nodes")
    operators_only, shared, refresh_seconds = True, True, 15
    by_node = (Key(F("node__natural_name")), Key("index"))
    first = (Key("present"), Key(Exact(F("unhealthy"), Value(""))), Key("cordoned", descending=True), *by_node)
    columns = [
        column(_("GPU"), "gpu", *by_node),
        column(_("State"), "state", *first),
        column(_("Model"), "model", "model", *by_node, css="wide"),
        column(_("Pool"), "pool", F("node__pool__natural_name"), *by_node, css="wide"),
        column(_("Core allocated"), "core", "core_used", word="leased"),
        column(_("Memory allocated"), "memory", "memory_used_mib", word="leased"),
        number(_("Power")),
    ]
    views = [
        SavedView(_("All")),
        SavedView(_("Problems"), "state=problems"),
        SavedView(_("Without claims"), "idle=1"),
    ]
    file = ("gpus", [
        "uuid", "node", "index", "model", "pool", "present", "cordoned", "unhealthy", "core_used", "core_outside",
        "memory_used_mib", "memory_mib", "memory_outside_mib",
    ])  # fmt: skip

    def with_details(self, rows: Any) -> Any:
        """Add node and pool."""
        return rows.select_related("node__pool").defer("links", "node__labels", "node__drifts", "node__checks")

    def present(self, rows: list[Any]) -> list[Any]:
        """Add the power that each GPU draws."""
        watts = watts_of_gpus(rows)
        for row in rows:
            row.watts = watts[row.uuid]
        return rows

    def facts(self, row: Any) -> Any:
        """Return the GPU with the names of its node and pool."""
        return facts_of(row, self.file[1], node=row.node.name, pool=row.node.pool.name)
