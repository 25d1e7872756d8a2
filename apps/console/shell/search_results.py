"""Search results of the database: a query per kind, restricted to the reader."""

from dataclasses import dataclass, field
from typing import Any, Final

from django.db.models import Case, QuerySet, TextField, Value, When
from django.db.models.functions import Cast, Concat
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from apps.nodes.models import Gpu, Node
from apps.quotas.models import Pool, ResourceQuota, Role, Tenant
from apps.quotas.principals import Principal
from apps.scheduling.models import Claim, ClaimState, Reservation
from gpucloud.web.tags import amount

# Of a kind; a reader who sees more types one more letter.
MOST: Final = 6
RESOURCES: Final = {
    "core_percent": gettext_lazy("core"),
    "memory_mib": gettext_lazy("memory"),
    "vgpus": gettext_lazy("vGPUs"),
    "gpus": gettext_lazy("whole GPUs"),
    "host_memory_mib": gettext_lazy("host memory"),
}


@dataclass(frozen=True, slots=True)
class Hit:
    """One result. `state`: of a claim, a node or a reservation; `words`: further words by which it is found."""

    title: str
    detail: str
    url: str
    icon: str
    state: str = ""
    words: str = ""


@dataclass(frozen=True, slots=True)
class Group:
    """Results of one kind."""

    kind: str
    title: str
    hits: list[Hit]


@dataclass(frozen=True, slots=True)
class Tenants:
    """Tenants that were found, and the reader's actions for the first."""

    hits: list[Hit] = field(default_factory=list)
    actions: list[Hit] = field(default_factory=list)


def filter_by_words(rows: QuerySet[Any], kind: str, columns: list[str], words: list[str], *, name: str) -> Any:
    """Return rows whose text (kind, then columns) has every word; names that begin with the first word come first."""
    parts = [part for column in columns for part in (Value(" "), Cast(column, TextField()))]
    rows = rows.annotate(searched=Concat(Value(kind), *parts, output_field=TextField()))
    for word in words:
        rows = rows.filter(searched__icontains=word)
    begins = Case(When(**{f"{name}__istartswith": words[0]}, then=Value(0)), default=Value(1))
    return rows.annotate(begins=begins).order_by("begins", "-pk")


def claims(principal: Principal, words: list[str]) -> tuple[list[Hit], Claim | None]:
    """Return results, live claims first, and the first live claim."""
    rows = Claim.objects.visible_to(principal).select_related("tenant")
    rows = filter_by_words(rows, "claim", ["tenant__slug", "name", "group", "uid"], words, name="name")
    live = list(rows.live()[:MOST])
    # Ended claims only fill up the list: they are the most.
    over = list(rows.filter(state=ClaimState.RELEASED)[: MOST - len(live)]) if len(live) < MOST else []
    hits = [
        Hit(row.name, f"{row.tenant} · {row.uid}", reverse("claim", args=[row.uid]), "stack-2", state=row.state)
        for row in [*live, *over]
    ]
    return hits, live[0] if live else None


def tenants(principal: Principal, words: list[str]) -> Tenants:
    """Return tenants by slug and name, with the actions for the first."""
    rows = filter_by_words(Tenant.objects.visible_to(principal), "tenant", ["slug", "name"], words, name="slug")
    found = Tenants()
    for row in rows[:MOST]:
        found.hits.append(Hit(row.slug, row.name, reverse("tenant", args=[row.slug]), "building"))
        if len(found.hits) == 1:
            found.actions.extend(_tenant_actions(principal, row))
    return found


def _tenant_actions(principal: Principal, tenant: Tenant) -> list[Hit]:
    offered = []
    if principal.is_operator or tenant.pk in principal.with_role(Role.MEMBER):
        offered.append(
            Hit(_("New claim for {0}").format(tenant), tenant.name, f"{reverse('new-claim')}?tenant={tenant}", "plus")
        )
    if principal.is_operator:
        url = reverse("new-quota", args=[tenant.slug])
        offered.append(Hit(_("Give {0} a quota").format(tenant), tenant.name, url, "gauge"))
    return offered


def fleet(principal: Principal, words: list[str]) -> list[Group]:
    """Return nodes, GPUs and pools to operators."""
    if not principal.is_operator:
        return []
    nodes = filter_by_words(Node.objects.select_related("pool"), "node", ["name", "pool__name"], words, name="name")
    gpus = filter_by_words(
        Gpu.objects.select_related("node"), "gpu", ["index", "node__name", "model", "uuid"], words, name="uuid"
    )
    pools = filter_by_words(Pool.objects.all(), "pool", ["name"], words, name="name")
    return [
        Group("nodes", _("Nodes"), [_node_hit(row) for row in nodes[:MOST]]),
        Group("gpus", "GPUs", [_gpu_hit(row) for row in gpus.order_by("node__name", "index")[:MOST]]),
        Group(
            "pools",
            _("Pools"),
            [Hit(row.name, row.sharing_policy, reverse("pool", args=[row.name]), "cpu") for row in pools[:MOST]],
        ),
    ]


def _node_hit(row: Node) -> Hit:
    return Hit(row.name, _("pool {0}").format(row.pool), reverse("node", args=[row.name]), "server-2", state=row.state)


def _gpu_hit(row: Gpu) -> Hit:
    title = _("GPU {0} of {1}").format(row.index, row.node.name)
    return Hit(title, f"{row.model} · {row.uuid}", reverse("gpu", args=[row.uuid]), "cpu")


def quotas(principal: Principal, words: list[str]) -> list[Hit]:
    """Return quotas by tenant, resource and pool."""
    rows = ResourceQuota.objects.visible_to(principal).select_related("tenant", "pool")
    rows = filter_by_words(rows, "quota", ["tenant__slug", "resource", "pool__name"], words, name="tenant__slug")
    return [_quota_hit(row) for row in rows[:MOST]]


def _quota_hit(row: ResourceQuota) -> Hit:
    where = " " + _("in {pool}").format(pool=row.pool) if row.pool else ""
    detail = _("{0} of {1}").format(amount(row.used, row.resource), amount(row.hard, row.resource))
    return Hit(
        f"{row.tenant}, {RESOURCES.get(row.resource, row.resource)}{where}",
        detail,
        reverse("quota", args=[row.pk]),
        "gauge",
    )


def reservations(principal: Principal, words: list[str]) -> list[Hit]:
    """Return current and future reservations by tenant, name and pool."""
    rows: Any = Reservation.objects.visible_to(principal).open().select_related("tenant")
    rows = filter_by_words(rows, "reservation", ["tenant__slug", "name", "pool__name", "uid"], words, name="name")
    return [
        Hit(
            row.name,
            f"{row.tenant}, {timezone.localtime(row.start_at):%Y-%m-%d %H:%M %Z}",
            reverse("reservation", args=[row.uid]),
            "calendar",
            state=row.state,
        )
        for row in rows[:MOST]
    ]
