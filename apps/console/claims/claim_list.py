"""The list of claims: those with problems first, filtered by state, place, owner, label and use."""

from functools import partial
from typing import Any

from django.db.models import Exists, F, OuterRef, Q, Subquery
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from apps.console.claims.claims import BEST_EFFORT, GUARANTEED
from apps.console.claims.suspension import resume_row, suspend_row
from apps.console.shell.export import Row, facts_of
from apps.console.shell.lists.bulk import Action, NothingToDo
from apps.console.shell.lists.columns import SavedView, column, named, number, rank
from apps.console.shell.lists.filters import Choice, Flag, ListFilter, Search, Text, pools, tenants
from apps.console.shell.lists.views import ListPage
from apps.console.shell.measurements import with_places, with_use
from apps.quotas.principals import Principal
from apps.scheduling.models import Assignment, Claim, ClaimState
from apps.scheduling.services.claims.lifecycle import release_claim
from gpucloud.web.badges import badge
from gpucloud.web.keyset import Key

COLUMNS = [
    "uid", "name", "tenant", "pool", "state", "gpu_count", "core_request", "core_limit", "memory_mib", "priority",
    "gpus", "reasons", "created_by", "created_at", "class", "weight", "rebalance", "gpu_model", "node_selector",
    "affinity", "anti_affinity", "exclusion", "time_limit_seconds", "start_at", "group", "group_size", "group_most",
    "group_uid", "reservation", "when_over_quota", "lease_seconds", "lease_until", "generation", "lent_core",
    "borrowed_core", "asked_core_limit", "host_memory_mib", "suspended_by", "rotation", "idle_since", "idle_reason",
    "idle_release_at", "yields_at", "preempt_at", "assigned_at", "released_at", "updated_at", "version",
    "unreachable_since", "below_guarantee_since", "used_by", "movable", "moves_to", "moves_by", "schedule",
    "suspends_at", "memory_limit_mib", "isolation", "profile", "own_core", "own_memory_mib", "instance_of",
    "remote",
]  # fmt: skip
LIVE = ~Q(state=ClaimState.RELEASED)
# The worst first: those whose users wait before those that run.
STATES = (
    "failed", "queued", "resuming", "pending", "allocating", "suspended", "suspending", "releasing", "assigned",
    "active", "released",
)  # fmt: skip
PLACES = Assignment.objects.filter(claim=OuterRef("pk")).exclude(state="released")


class Node(Text):
    """The claims on a node."""

    def filter(self, rows: Any, value: Any) -> Any:
        """Return the claims that hold a GPU of the node."""
        return rows.filter(Exists(PLACES.filter(gpu__node__name=value))) if value else rows


class Label(Text):
    """The claims with a label of their tenant."""

    def filter(self, rows: Any, value: Any) -> Any:
        """Return the claims that name the label."""
        return rows.filter(Q(affinity=value) | Q(anti_affinity=value) | Q(exclusion=value)) if value else rows


class ClaimFilter(ListFilter):
    """The filters of claims."""

    folded = ("node", "owner", "label", "idle", "mine")
    q = Search("name", "group", "uid", placeholder=_("name, group or uid"))
    state = Choice(
        _("State"),
        {"problems": (_("Problems"), Q(state="failed") | Q(state="queued"))}
        | {state.value: (badge(state).label, Q(state=state)) for state in ClaimState}
        | {"all": (_("All"), Q())},
        empty=_("All but released"),
        otherwise=LIVE,
    )
    tenant = tenants()
    pool = pools()
    node = Node(_("Node"), "node", "gpu1")
    owner = Text(_("Owner"), "created_by__icontains", "user:anna")
    label = Label(_("Label"), "label")
    idle = Flag(_("Idle"), Q(idle_since__isnull=False))
    mine = Flag(_("Mine"), lambda principal: Q(user=principal.user_id))


class ClaimList(ListPage):
    """The visible claims, all but released ones unless the URL asks for others."""

    model, filters, template_name = Claim, ClaimFilter, "claims/list.html"
    title, subtitle = _("Claims"), _("GPU claims and their status")
    refresh_seconds = 5
    first = (rank(STATES, F("state")), Key("pk", descending=True))
    columns = [
        named(_("Claim")),
        column(_("State"), "state", rank(STATES, F("state"))),
        column(_("Core now"), "core", "core_request", word="core"),
        column(_("Memory now"), "memory", "memory_mib", css="wide", word="memory"),
        column(_("Where"), "node", Subquery(PLACES.values(key=F("gpu__node__natural_name"))[:1]), css="wide"),
        column(_("Owner"), "owner", "created_by", css="wide"),
        number(_("Created"), "created", "pk", css="wide num"),
    ]
    views = [
        SavedView(_("All but released")),
        SavedView(_("Problems"), "state=problems"),
        SavedView(_("Idle"), "idle=1"),
        SavedView(_("Mine"), "mine=1"),
        SavedView(_("Newest"), "sort=-created"),
    ]
    file = ("claims", COLUMNS)

    def with_details(self, rows: Any) -> Any:
        """Add tenant, pool, reservation and GPUs."""
        return with_places(rows).select_related("reservation", "rotation")

    def present(self, rows: list[Any]) -> list[Any]:
        """Add the present use."""
        return with_use(rows)

    def facts(self, row: Any) -> Row:
        """Return the claim with the names of what it refers to."""
        return facts_of(
            row,
            COLUMNS,
            tenant=row.tenant.slug,
            pool=row.pool.name,
            gpus=[f"{item.gpu.node.name}/{item.gpu.index}" for item in row.present_assignments],
            reservation=row.reservation and row.reservation.uid,
            rotation=hasattr(row, "rotation"),
            **{"class": BEST_EFFORT if row.best_effort else GUARANTEED},
        )

    def pick_of(self, row: Any) -> tuple[str, str]:
        """Return the claim's uid and name."""
        return super().pick_of(row["claim"])

    def actions(self) -> list[Action]:
        """Return release, suspension and resumption, for those who may claim."""
        acts = (
            ("release", _("Release"), _release),
            ("suspend", _("Suspend"), suspend_row),
            ("resume", _("Resume"), resume_row),
        )
        if not self.principal.may_claim:
            return []
        return [Action(name, label, partial(act, self.principal)) for name, label, act in acts]


def _release(principal: Principal, claim: Claim, versions: frozenset[int] | None) -> str:
    before = claim.state
    # The service answers a repeated request like the first one.
    if before == ClaimState.RELEASED or (before == ClaimState.RELEASING and claim.preempt_at is None):
        raise NothingToDo(gettext("It is released already."))
    if release_claim(principal=principal, claim=claim, versions=versions).state == ClaimState.RELEASED:
        return gettext("Leaves the queue and refunds its quota.")
    return gettext("Ends its programs, then frees its share and quota.")
