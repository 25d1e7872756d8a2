"""Pages of clusters: the list, and one cluster with its connection, its pods and its removal."""

from typing import Any

from django.contrib import messages
from django.db.models import Count, F, OuterRef, Q, QuerySet, Subquery
from django.db.models.functions import Coalesce
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect, render
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _
from django.views.decorators.http import require_GET, require_http_methods

from apps.clusters.models import Cluster, PodClaim, SharePod
from apps.clusters.models.cluster import ClusterState
from apps.clusters.services import clusters, connections, quota_drift, watchers
from apps.console.clusters.cluster_forms import BindingForm, ClusterForm, NewClusterForm
from apps.console.shell.export import as_file, facts_of, file_format
from apps.console.shell.forms import posted_versions
from apps.console.shell.lists.columns import column, named, number, rank
from apps.console.shell.lists.filters import Choice, ListFilter, Search, pools
from apps.console.shell.lists.views import ListPage
from apps.console.shell.page_access import page, wants_fragment
from apps.quotas.models import AuditEvent
from apps.quotas.principals import Principal
from apps.scheduling.models import Claim
from gpucloud.errors import GpucloudError, PreconditionFailed
from gpucloud.web.badges import badge
from gpucloud.web.keyset import Key
from gpucloud.web.natural_order import natural_key

# The API lists the rest.
MOST_PODS = 200
METHODS = ["GET", "POST"]
PODS = [
    "namespace", "pod", "container", "node_name", "gpu_indexes", "core", "memory_mib", "claim", "state", "tenant",
    "problem",
]  # fmt: skip
SHAREPODS = ["namespace", "name", "gpu_id", "claim", "state", "tenant"]
QUOTAS = ["namespace", "tenant", "resource", "wanted", "there", "used", "in_step"]
NAMESPACES = ["namespace", "selector", "tenant"]


class ClusterFilter(ListFilter):
    """The filters of clusters."""

    q = Search("name", "server", placeholder=_("name or server"))
    state = Choice(_("State"), {one.value: (badge(one).label, Q(state=one)) for one in ClusterState})
    pool = pools()


class ClusterList(ListPage):
    """Every cluster, those with problems first, and whether a watcher runs."""

    model, filters, template_name = Cluster, ClusterFilter, "clusters/list.html"
    title, subtitle = _("Clusters"), _("Clusters of Kubernetes whose pods share the GPUs of a pool")
    operators_only = True
    first = (rank(("unreachable", "waiting"), F("state")), Key(natural_key("name")))
    columns = [
        named(_("Cluster")),
        column(_("State"), "state", *first),
        column(_("Pool"), "pool", F("pool__natural_name"), natural_key("name")),
        number(_("Namespaces")),
        number(_("Containers")),
        column(_("Placed by"), "placement", "placement", css="wide"),
        column(_("Quotas"), css="wide"),
    ]
    file = ("clusters", [
        "name", "server", "pool", "state", "state_reason", "enabled", "placement", "strict", "sync_quotas", "bound",
        "containers", "unclaimed", "kubernetes_version", "synced_at",
    ])  # fmt: skip

    def with_details(self, rows: Any) -> Any:
        """Add bindings and containers."""
        return with_counts(rows)

    def facts(self, row: Any) -> Any:
        """Return the cluster with its pool's name."""
        return facts_of(row, self.file[1], pool=row.pool.name)

    def more_context(self) -> dict[str, Any]:
        """Return whether a watcher runs."""
        return {"watching": watchers.is_led()}


def with_counts(rows: QuerySet[Cluster]) -> QuerySet[Cluster]:
    """Annotate the clusters with their bindings, live containers, and containers without a claim."""
    live = PodClaim.objects.live().filter(cluster=OuterRef("pk")).order_by().values("cluster")
    return rows.select_related("pool").annotate(
        bound=Count("bindings"),
        containers=Coalesce(Subquery(live.annotate(number=Count("pk")).values("number")), 0),
        unclaimed=Coalesce(Subquery(live.annotate(number=Count("pk", filter=Q(claim=None))).values("number")), 0),
    )


def find(name: str) -> Any:
    """Return the cluster as `with_counts` annotates it. Raises Http404."""
    cluster = with_counts(Cluster.objects.filter(name=name)).first()
    if cluster is None:
        raise Http404("There is no such cluster.")
    return cluster


@require_http_methods(METHODS)
@page
def new_cluster(request: HttpRequest, principal: Principal) -> HttpResponse:
    """Connect a cluster; nothing is written to it."""
    principal.require_operator()
    form = NewClusterForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        try:
            made = clusters.connect(principal=principal, **form.values)
        except GpucloudError as error:
            form.refuse(error)
        else:
            said = gettext("Cluster {0} is stored. Test the connection, then bind its namespaces.")
            messages.success(request, said.format(made.name))
            return redirect("cluster", name=made.name)
    return render(request, "clusters/new.html", {"form": form}, status=422 if form.is_bound else 200)


@require_http_methods(METHODS)
@page
def cluster_detail(request: HttpRequest, principal: Principal, name: str) -> HttpResponseBase:
    """Show one cluster or its live fragment, or change its settings."""
    principal.require_operator()
    cluster = find(name)
    if request.method == "GET" and wants_fragment(request):
        return render(request, "clusters/_living.html", live_context(cluster))
    if file := file_format(request):
        return _table(file, principal, cluster, request.GET.get("table", ""))
    form = ClusterForm(request.POST or None, cluster=cluster)
    shown: dict[str, Any] = {}
    if request.method == "POST" and form.is_valid():
        shown, done = _apply_change(request, principal, form)
        if done:
            return redirect("cluster", name=name)
    return render_cluster(request, find(name), form=form, refused=form.is_bound and not form.is_valid(), **shown)


def _table(file: str, principal: Principal, cluster: Cluster, table: str) -> HttpResponse:
    """Return all rows of one of the page's tables as a file; its pods by default."""
    if table == "quotas":
        standing = quota_drift.read(principal=principal, cluster=cluster)
        return as_file(file, f"{cluster}-quotas", QUOTAS, (facts_of(row, QUOTAS) for row in standing.amounts))
    if table == "sharepods":
        found = SharePod.objects.filter(cluster=cluster, ended_at=None).select_related("claim__tenant")
        rows = (facts_of(row, SHAREPODS, **_claim_facts(row.claim)) for row in found.order_by("namespace", "name"))
        return as_file(file, f"{cluster}-sharepods", SHAREPODS, rows)
    if table == "namespaces":
        bound = cluster.bindings.select_related("tenant").order_by("namespace", "pk")
        rows = (facts_of(row, NAMESPACES, tenant=row.tenant.slug) for row in bound)
        return as_file(file, f"{cluster}-namespaces", NAMESPACES, rows)
    pods = PodClaim.objects.live().filter(cluster=cluster).select_related("claim__tenant").order_by("namespace", "pod")
    return as_file(file, f"{cluster}-pods", PODS, (facts_of(row, PODS, **_claim_facts(row.claim)) for row in pods))


def _claim_facts(claim: Claim | None) -> dict[str, Any]:
    if claim is None:
        return dict.fromkeys(("claim", "state", "tenant"))
    return {"claim": claim.uid, "state": claim.state, "tenant": claim.tenant.slug}


def render_cluster(
    request: HttpRequest,
    cluster: Cluster,
    *,
    form: ClusterForm | None = None,
    bind: BindingForm | None = None,
    refused: bool = False,
    **more: Any,
) -> HttpResponse:
    """Render the page of a cluster."""
    shown = {
        "form": form or ClusterForm(cluster=cluster),
        "bind": bind or BindingForm(),
        **live_context(cluster),
        **more,
    }
    return render(request, "clusters/cluster.html", shown, status=422 if refused else 200)


def live_context(cluster: Any) -> dict[str, Any]:
    """Return the context of the live fragment."""
    pods = PodClaim.objects.live().filter(cluster=cluster).select_related("node", "claim__tenant")
    sharepods = SharePod.objects.filter(cluster=cluster, ended_at=None).select_related("claim__tenant")
    return {
        "cluster": cluster,
        "watching": watchers.is_led(),
        # Containers without a claim come first: an operator has to repair them.
        "pods": pods.order_by(F("claim").asc(nulls_first=True), "namespace", "pod")[:MOST_PODS],
        "more_pods": max(0, cluster.containers - MOST_PODS),
        "sharepods": sharepods.order_by("namespace", "name")[:MOST_PODS],
        "bindings": cluster.bindings.select_related("tenant").order_by("namespace", "pk"),
    }


def _apply_change(request: HttpRequest, principal: Principal, form: ClusterForm) -> tuple[dict[str, Any], bool]:
    """Return the context beside the form, and True if the change was made."""
    version, changes = form.cleaned_data["version"], form.changes
    versions = None if version is None else frozenset({version})
    try:
        clusters.change(principal=principal, cluster=form.cluster, versions=versions, **changes)
    except PreconditionFailed:
        form.cluster.refresh_from_db()
        events = AuditEvent.objects.filter(object_type="cluster", object_id=form.cluster.name).order_by("-pk")
        form.data = {**dict(form.data.items()), "version": str(form.cluster.version)}
        return {"conflict": events.first()}, False
    except GpucloudError as error:
        form.refuse(error)
        return {}, False
    labels = ", ".join(str(form.fields[name].label).lower() for name in sorted(changes))
    said = gettext("{0} is changed: {1}.") if changes else gettext("Nothing has changed.")
    messages.success(request, said.format(form.cluster, labels))
    return {}, True


@require_GET
@page
def connection(request: HttpRequest, principal: Principal, name: str) -> HttpResponse:
    """Test the connection now; render a fragment, or the page with it."""
    principal.require_operator()
    cluster = find(name)
    tried = connections.attempt(principal=principal, cluster=cluster)
    if wants_fragment(request):
        return render(request, "clusters/_connection.html", {"tried": tried})
    return render_cluster(request, cluster, tried=tried)


@require_http_methods(METHODS)
@page
def remove(request: HttpRequest, principal: Principal, name: str) -> HttpResponse:
    """Show the effect of removing the cluster; remove it if posted."""
    principal.require_operator()
    cluster = find(name)
    refusal = ""
    if request.method == "POST":
        try:
            clusters.remove(principal=principal, cluster=cluster, versions=posted_versions(request))
        except GpucloudError as error:
            refusal = gettext(error.detail)
        else:
            messages.success(request, gettext("Cluster {0} is forgotten.").format(name))
            return redirect("clusters")
    whose = Q(container__cluster=cluster) | Q(sharepod__cluster=cluster)
    holding = Claim.objects.live().filter(whose).distinct().select_related("tenant").order_by("name")
    shown = {"cluster": cluster, "holding": holding[:MOST_PODS], "refusal": refusal}
    return render(request, "clusters/remove.html", shown, status=409 if refusal else 200)
