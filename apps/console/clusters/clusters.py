"""Pages of clusters: the list, and one cluster with its connection, its pods and its removal."""

from typing import Any

from django.contrib import messages
from django.db.models import Case, Count, F, OuterRef, Q, QuerySet, Subquery, When
from django.db.models.functions import Coalesce
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect, render
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _
from django.views.decorators.http import require_http_methods

from apps.clusters.models import Cluster, DeviceClaim, PodClaim, SharePod
from apps.clusters.models.cluster import ClusterState
from apps.clusters.services import clusters, connections, quota_drift, watchers
from apps.console.clusters.cluster_forms import BindingForm, ClusterForm, NewClusterForm
from apps.console.shell.export import as_file, facts_of, file_format
from apps.console.shell.form_page import FormPage
from apps.console.shell.forms import posted_versions
from apps.console.shell.lists.columns import column, named, number, rank
from apps.console.shell.lists.filters import Choice, ListFilter, Search, pools
from apps.console.shell.lists.views import ListPage
from apps.console.shell.page_access import page, wants_fragment
from apps.quotas.principals import Principal
from apps.scheduling.models import Claim
from gpucloud.errors import GpucloudError
from gpucloud.web.badges import badge
from gpucloud.web.keyset import Key
from gpucloud.web.natural_order import natural_key

# The API lists the rest.
MOST_PODS = 200
PODS = [
    "namespace", "pod", "container", "node_name", "gpu_indexes", "core", "memory_mib", "claim", "state", "tenant",
    "problem",
]  # fmt: skip
DEVICES = ["namespace", "name", "node_name", "claim", "state", "tenant", "problem", "refusal"]
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


class NewCluster(FormPage):
    """A new connection to a cluster; nothing is written to the cluster."""

    title, submit, form_class = _("Connect a cluster"), _("Connect cluster"), NewClusterForm
    subtitle = _("Credentials are stored encrypted and never shown; nothing is written to the cluster yet")
    operators_only, parent = True, ("clusters", _("Clusters"))

    def act(self, form: NewClusterForm) -> Cluster:
        """Connect the cluster."""
        return clusters.connect(principal=self.principal, **form.values)

    def finish(self, form: NewClusterForm, done: Cluster) -> HttpResponse:
        """Lead to the cluster."""
        self.say(gettext("Cluster {0} is stored. Test the connection, then bind its namespaces.").format(done))
        return redirect("cluster", name=done.name)


class ClusterPage(FormPage):
    """A cluster with its pods, its bindings and the form of its settings."""

    template_name, operators_only, object_type = "clusters/cluster.html", True, "cluster"

    def find(self) -> Any:
        """Return the cluster."""
        return find(self.kwargs["name"])

    def get(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        """Show the cluster, its live fragment, or one of its tables as a file."""
        if file := file_format(request):
            return _table(file, self.principal, self.row, request.GET.get("table", ""))
        if wants_fragment(request):
            self.template_name = "clusters/_living.html"
        return super().get(request, *args, **kwargs)

    def form(self, data: Any = None) -> Any:
        """Return the form with the cluster's settings."""
        return ClusterForm(data, cluster=self.row)

    def act(self, form: Any) -> Any:
        """Change the settings, and return the changes."""
        changes = form.changes
        clusters.change(principal=self.principal, cluster=self.row, versions=form.versions, **changes)
        return changes

    def finish(self, form: Any, done: Any) -> HttpResponse:
        """Return to the cluster."""
        self.say_changed(form, sorted(done))
        return redirect("cluster", name=self.row.name)

    def more_context(self) -> dict[str, Any]:
        """Return the live parts and the form of a binding."""
        return {"bind": BindingForm(), **live_context(self.row)}

    @property
    def heading(self) -> str:
        """The title of the page."""
        return gettext("Cluster {0}").format(self.row)

    @property
    def audited_key(self) -> str:
        """The cluster's name."""
        return str(self.row.name)


def _table(file: str, principal: Principal, cluster: Cluster, table: str) -> HttpResponse:
    """Return all rows of one of the page's tables as a file; its pods by default."""
    if table == "quotas":
        standing = quota_drift.read(principal=principal, cluster=cluster)
        return as_file(file, f"{cluster}-quotas", QUOTAS, (facts_of(row, QUOTAS) for row in standing.amounts))
    if table == "sharepods":
        found = SharePod.objects.filter(cluster=cluster, ended_at=None).select_related("claim__tenant")
        rows = (facts_of(row, SHAREPODS, **_claim_facts(row.claim)) for row in found.order_by("namespace", "name"))
        return as_file(file, f"{cluster}-sharepods", SHAREPODS, rows)
    if table == "resource-claims":
        asked = DeviceClaim.objects.live().filter(cluster=cluster).select_related("claim__tenant")
        rows = (facts_of(row, DEVICES, **_claim_facts(row.claim)) for row in asked.order_by("namespace", "name"))
        return as_file(file, f"{cluster}-resource-claims", DEVICES, rows)
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


def live_context(cluster: Any) -> dict[str, Any]:
    """Return the context of the live fragment."""
    pods = PodClaim.objects.live().filter(cluster=cluster).select_related("node", "claim__tenant")
    sharepods = SharePod.objects.filter(cluster=cluster, ended_at=None).select_related("claim__tenant")
    devices = DeviceClaim.objects.live().filter(cluster=cluster).select_related("claim__tenant")
    return {
        "cluster": cluster,
        "watching": watchers.is_led(),
        "devices": devices.order_by(Case(When(problem="", then=1), default=0), "namespace", "name")[:MOST_PODS],
        # Containers without a claim come first: an operator has to repair them.
        "pods": pods.order_by(F("claim").asc(nulls_first=True), "namespace", "pod")[:MOST_PODS],
        "more_pods": max(0, cluster.containers - MOST_PODS),
        "sharepods": sharepods.order_by("namespace", "name")[:MOST_PODS],
        "bindings": cluster.bindings.select_related("tenant").order_by("namespace", "pk"),
    }


class ConnectionPage(ClusterPage):
    """The test of the connection, as a fragment or with the page."""

    http_method_names = ["get", "head"]

    def get(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        """Test the connection now."""
        if wants_fragment(request):
            self.template_name = "clusters/_connection.html"
        tried = connections.attempt(principal=self.principal, cluster=self.row)
        return self.show(self.form(), tried=tried)


@require_http_methods(["GET", "POST"])
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
