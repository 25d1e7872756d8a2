"""Pages of pools: the list, and one pool with sharing, idle rule and rebalancing. Operators only."""

from typing import Any

from django.contrib import messages
from django.db import transaction
from django.db.models import Count, F, JSONField, OuterRef, QuerySet, Subquery, Sum, Value
from django.db.models.functions import Coalesce, JSONObject
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.utils import timezone
from django.utils.http import urlencode
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _
from django.views.decorators.http import require_POST

from apps.console.pools.back_ends import differing, unable
from apps.console.pools.pool_forms import NewPoolForm, PoolForm, label_in_sentence
from apps.console.pools.proposals import with_words
from apps.console.shell.export import facts_of
from apps.console.shell.form_page import FormPage
from apps.console.shell.forms import describe_error
from apps.console.shell.lists.columns import column, number
from apps.console.shell.lists.filters import ListFilter, Search
from apps.console.shell.lists.views import ListPage
from apps.console.shell.page_access import page
from apps.nodes.models import Gpu, Node
from apps.nodes.models.gpu import WHOLE
from apps.quotas.models import AuditEvent, Pool
from apps.quotas.models.pool import BackEnd, MpsGroup
from apps.quotas.principals import Principal
from apps.quotas.services.tenants import create_pool
from apps.scheduling.core import idleness as core
from apps.scheduling.models import Claim, Proposal, ProposalState
from apps.scheduling.models.claim import IN_QUEUE
from apps.scheduling.services.claims.sharing import SHARING, change_pool
from apps.scheduling.services.rebalancing import idleness, proposals
from apps.scheduling.services.rebalancing.observing import bounds_of
from gpucloud.errors import GpucloudError
from gpucloud.web.keyset import Key

# A preview that needs scrolling hides what it should show.
MOST = 10
# The capacity of a pool without GPUs.
EMPTY = {"gpus": 0, "core": 0, "allocated": 0}
IDLE = {"idle_rule", "idle_seconds", "unused_seconds", "rebalance_bounds"}
REBALANCING = {"rebalance_mode", "rebalance_policy", "rebalance_bounds"}


class PoolFilter(ListFilter):
    """The filters of pools."""

    q = Search("name", "description", placeholder=_("name or description"))


class PoolList(ListPage):
    """Every pool with its capacity and its policies."""

    model, filters, template_name = Pool, PoolFilter, "pools/list.html"
    title, subtitle = _("Pools"), _("Sets of nodes, and how their GPUs are shared")
    operators_only = True
    first = (Key(F("natural_name")),)
    columns = [
        column(_("Pool"), "name", Key(F("natural_name"), nullable=False)),
        number(_("GPUs")),
        column(_("Core allocated"), css="wide"),
        column(_("Sharing"), "sharing", "sharing_policy"),
        column(_("Processes past limits"), "audit", "audit_policy", css="wide"),
        column(_("Idle claims"), "idle", "idle_rule"),
        column(_("Rebalancing"), "rebalancing", "rebalance_mode"),
    ]
    file = ("pools", [
        "pool", "description", "nodes_there", "gpu_count", "core_total", "core_leased", "idle_claims", "open_proposals",
        "sharing_policy", "backend", "mps_group", "audit_policy", "idle_rule", "rebalance_mode",
    ])  # fmt: skip

    def with_details(self, rows: Any) -> Any:
        """Add the capacity."""
        return with_counts(rows)

    def facts(self, row: Any) -> Any:
        """Return the pool with its name."""
        part = {"gpu_count": "gpus", "core_total": "core", "core_leased": "allocated"}
        return facts_of(row, self.file[1], pool=row.name, **{name: row.capacity[key] for name, key in part.items()})


class PoolPage(FormPage):
    """A pool and its form."""

    template_name, preview_template = "pools/pool.html", "pools/_preview.html"
    operators_only, object_type, parent = True, "pool", ("pools", _("Pools"))

    def find(self) -> Pool:
        """Return the pool."""
        return find(self.kwargs["name"])

    def form(self, data: Any = None) -> PoolForm:
        """Return the form with the pool's settings."""
        return PoolForm(data, pool=self.row)

    def act(self, form: PoolForm) -> dict[str, Any]:
        """Change the pool, and return the changes."""
        changes = form.changes
        change_pool(principal=self.principal, pool=self.row, versions=form.versions, **changes)
        return changes

    def preview(self, form: PoolForm) -> dict[str, Any]:
        """Return the effect of the change."""
        arguments = {"versions": form.versions, **form.changes}
        return {"preview": preview(self.principal, self.row, arguments, form.changes)}

    def finish(self, form: PoolForm, done: dict[str, Any]) -> HttpResponse:
        """Return to the pool."""
        words = ", ".join(map(label_in_sentence, sorted(done)))
        said = gettext("Pool {0} is changed: {1}.") if done else gettext("Nothing has changed.")
        self.say(said.format(self.row, words))
        return redirect("pool", name=self.row.name)

    def describe(self) -> str:
        """Return what the last change set, in words."""
        event = AuditEvent.objects.filter(object_type="pool", object_id=self.row.name).order_by("-pk").first()
        values = (event and event.after) or {}
        return ", ".join(f"{label_in_sentence(name)} {value}" for name, value in values.items())

    def more_context(self) -> dict[str, Any]:
        """Return the pool as it is now."""
        return {"pool": self.find()}

    @property
    def heading(self) -> str:
        """The title of the page."""
        return gettext("Pool {0}").format(self.row.name)

    @property
    def audited_key(self) -> str:
        """The pool's name."""
        return str(self.row.name)


class NewPool(FormPage):
    """A new, empty pool; its page has the rest of the settings."""

    title = _("New pool")
    subtitle = _("A new pool is empty; its settings are on its page")
    form_class, submit, operators_only = NewPoolForm, _("Create pool"), True
    parent = ("pools", _("Pools"))

    def act(self, form: NewPoolForm) -> Pool:
        """Create the pool."""
        return create_pool(principal=self.principal, **form.service_arguments)

    def finish(self, form: NewPoolForm, done: Pool) -> HttpResponse:
        """Lead to the pool."""
        self.say(gettext("Pool {0} created. Add nodes to it next.").format(done))
        return redirect("pool", name=done.name)


@require_POST
@page
def rebalance_now(request: HttpRequest, principal: Principal, name: str) -> HttpResponse:
    """Run the rebalancer once, in the pool's mode."""
    principal.require_operator()
    try:
        found = proposals.rebalance(principal=principal, pool=find(name))
    except GpucloudError as error:
        messages.error(request, describe_error(error))
        return redirect("pool", name=name)
    said = ngettext("{0} claim checked, {1} to change.", "{0} claims checked, {1} to change.", found.considered)
    messages.success(request, " ".join([said.format(found.considered, len(found.proposals)), found.why or ""]).strip())
    return redirect(f"{reverse('proposals')}?{urlencode({'pool': name, 'state': 'all'})}")


def with_counts(pools: QuerySet[Pool]) -> QuerySet[Pool]:
    """Annotate the pools with their capacity, allocation, idle claims and open proposals."""
    # No joins: they would multiply the rows of each count.
    nodes = Node.objects.filter(pool=OuterRef("pk"), last_seen_at__isnull=False).order_by().values("pool")
    gpus = Gpu.objects.filter(node__pool=OuterRef("pk"), present=True).order_by().values("node__pool")
    # One pass over the GPUs of a pool, which has thousands: each subquery would be one more.
    capacity = JSONObject(gpus=Count("pk"), core=Count("pk") * WHOLE, allocated=Sum("core_used"))
    claims = Claim.objects.filter(pool=OuterRef("pk"), idle_since__isnull=False).order_by().values("pool")
    asked = Proposal.objects.filter(pool=OuterRef("pk"), state=ProposalState.PROPOSED).order_by().values("pool")
    return pools.annotate(
        nodes_there=_one(nodes, Count("pk")),
        capacity=Coalesce(Subquery(gpus.annotate(number=capacity).values("number")), Value(EMPTY, JSONField())),
        idle_claims=_one(claims, Count("pk")),
        open_proposals=_one(asked, Count("pk")),
    )


def _one(rows: Any, number: Any) -> Coalesce:
    return Coalesce(Subquery(rows.annotate(number=number).values("number")), 0)


def find(name: str) -> Pool:
    """Return the pool as `with_counts` annotates it. Raises Http404."""
    pool = with_counts(Pool.objects.filter(name=name)).first()
    if pool is None:
        raise Http404("There is no such pool.")
    return pool


def preview(principal: Principal, pool: Pool, arguments: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Return the effect of the change: apply it, read the result, roll it back. Raises what the change raises."""
    before = {name: getattr(pool, name) for name in changes}
    with transaction.atomic():
        after = change_pool(principal=principal, pool=pool, **arguments)
        shown: dict[str, Any] = {
            "changes": [(label_in_sentence(name), before[name], getattr(after, name)) for name in changes]
        }
        if SHARING & changes.keys():
            shown["nodes"] = Node.objects.filter(pool=after).count()
        if {"fair_share", "half_life_seconds"} & changes.keys():
            shown["reorders"] = Claim.objects.filter(IN_QUEUE, pool=after).count()
        if {"backend", "mps_group"} & changes.keys():
            shown |= {"backend": after.backend, "keeping": differing(after), "unable": unable(after)}
            shown["falls_together"] = (after.backend, after.mps_group) == (BackEnd.MPS, MpsGroup.POOL)
        if IDLE & changes.keys():
            shown["idle"] = _idle(after)
        if REBALANCING & changes.keys() and after.rebalance_mode != "off":
            found = proposals.rebalance(principal=principal, pool=after, dry_run=True)
            shown |= {
                "run": found,
                "proposals": list(map(with_words, found.proposals[:MOST])),
                "more": len(found.proposals) - MOST,
            }
        transaction.set_rollback(True)
    return shown


def _idle(pool: Pool) -> list[tuple[Claim, core.Step]]:
    """Return the claims that the pool's rule would find now."""
    now, rule, bounds = timezone.now(), idleness.rule_of(pool), bounds_of(pool)
    steps = [
        (claim, core.decide(seen, rule, bounds, int(now.timestamp())))
        for claim, seen in idleness.observe(pool, now=now)
    ]
    return [(claim, step) for claim, step in steps if step.reason is not None]
