"""Clusters: all of them, and one with how it is reached, what its pods hold, and what would become of it."""

from typing import Any

from django.contrib import messages
from django.db.models import Count, F, OuterRef, Q, QuerySet, Subquery
from django.db.models.functions import Coalesce
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _
from django.views.decorators.http import require_GET, require_http_methods

from apps.clusters.models import Cluster, PodClaim, SharePod
from apps.clusters.services import clusters, connections, quota_drift, watchers
from apps.console.clusters.cluster_forms import BindingForm, ClusterForm, NewClusterForm
from apps.console.shell.export import as_file, asked_as_file, facts_of
from apps.console.shell.forms import seen
from apps.console.shell.page_access import page, wants_fragment
from apps.quotas.models import AuditEvent
from apps.quotas.principals import Principal
from apps.scheduling.models import Claim
from gpucloud.errors import GpucloudError, PreconditionFailed

# More than that is the API's to list.
MOST_PODS = 200
# In digits; a longer one is no row's.
METHODS = ["GET", "POST"]
COLUMNS = [
    "name", "server", "pool", "state", "state_reason", "enabled", "placement", "strict", "sync_quotas", "bound",
    "containers", "unclaimed", "kubernetes_version", "synced_at",
]  # fmt: skip
PODS = [
    "namespace", "pod", "container", "node_name", "gpu_indexes", "core", "memory_mib", "claim", "state", "tenant",
    "problem",
]  # fmt: skip
SHAREPODS = ["namespace", "name", "gpu_id", "claim", "state", "tenant"]
QUOTAS = ["namespace", "tenant", "resource", "wanted", "there", "used", "in_step"]
NAMESPACES = ["namespace", "selector", "tenant"]


@require_GET
@page
def cluster_list(request: HttpRequest, principal: Principal) -> HttpResponseBase:
    """Every cluster, and whether somebody watches."""
    principal.require_operator()
    rows = counted(Cluster.objects.order_by("name"))
    if file := asked_as_file(request):
        return as_file(file, "clusters", COLUMNS, (facts_of(row, COLUMNS, pool=row.pool.name) for row in rows))
    shown = {"clusters": rows, "watching": watchers.is_led()}
    return render(request, "clusters/_rows.html" if wants_fragment(request) else "clusters/list.html", shown)


def counted(rows: QuerySet[Cluster]) -> QuerySet[Cluster]:
    """With its namespaces' bindings, its live containers, and those of them that have no claim."""
    live = PodClaim.objects.live().filter(cluster=OuterRef("pk")).order_by().values("cluster")
    return rows.select_related("pool").annotate(
        bound=Count("bindings"),
        containers=Coalesce(Subquery(live.annotate(number=Count("pk")).values("number")), 0),
        unclaimed=Coalesce(Subquery(live.annotate(number=Count("pk", filter=Q(claim=None))).values("number")), 0),
    )


def find(name: str) -> Any:
    """The cluster as `counted` has it. Raises Http404."""
    cluster = counted(Cluster.objects.filter(name=name)).first()
    if cluster is None:
        raise Http404("There is no such cluster.")
    return cluster


@require_http_methods(METHODS)
@page
def new_cluster(request: HttpRequest, principal: Principal) -> HttpResponse:
    """Connect a cluster; nothing is written there."""
    principal.require_operator()
    form = NewClusterForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        try:
            made = clusters.connect(principal=principal, **form.values)
        except GpucloudError as error:
            form.refuse(error)
        else:
            said = _("Cluster {0} is kept. Test the connection, then bind its namespaces.")
            messages.success(request, said.format(made.name))
            return redirect("cluster", name=made.name)
    return render(request, "clusters/new.html", {"form": form}, status=422 if form.is_bound else 200)


@require_http_methods(METHODS)
@page
def cluster_detail(request: HttpRequest, principal: Principal, name: str) -> HttpResponseBase:
    """One cluster, its living part, or a change of its settings."""
    principal.require_operator()
    cluster = find(name)
    if request.method == "GET" and wants_fragment(request):
        return render(request, "clusters/_living.html", living(cluster))
    if file := asked_as_file(request):
        return _table(file, principal, cluster, request.GET.get("table", ""))
    form = ClusterForm(request.POST or None, cluster=cluster)
    shown: dict[str, Any] = {}
    if request.method == "POST" and form.is_valid():
        shown, done = _changed(request, principal, form)
        if done:
            return redirect("cluster", name=name)
    return whole(request, find(name), form=form, refused=form.is_bound and not form.is_valid(), **shown)


def _table(file: str, principal: Principal, cluster: Cluster, asked: str) -> HttpResponse:
    """All rows of one of the page's tables; of its pods where no other is asked for."""
    if asked == "quotas":
        standing = quota_drift.read(principal=principal, cluster=cluster)
        return as_file(file, f"{cluster}-quotas", QUOTAS, (facts_of(row, QUOTAS) for row in standing.amounts))
    if asked == "sharepods":
        found = SharePod.objects.filter(cluster=cluster, ended_at=None).select_related("claim__tenant")
        rows = (facts_of(row, SHAREPODS, **_of_claim(row.claim)) for row in found.order_by("namespace", "name"))
        return as_file(file, f"{cluster}-sharepods", SHAREPODS, rows)
    if asked == "namespaces":
        bound = cluster.bindings.select_related("tenant").order_by("namespace", "pk")
        rows = (facts_of(row, NAMESPACES, tenant=row.tenant.slug) for row in bound)
        return as_file(file, f"{cluster}-namespaces", NAMESPACES, rows)
    pods = PodClaim.objects.live().filter(cluster=cluster).select_related("claim__tenant").order_by("namespace", "pod")
    return as_file(file, f"{cluster}-pods", PODS, (facts_of(row, PODS, **_of_claim(row.claim)) for row in pods))


def _of_claim(claim: Claim | None) -> dict[str, Any]:
    if claim is None:
        return dict.fromkeys(("claim", "state", "tenant"))
    return {"claim": claim.uid, "state": claim.state, "tenant": claim.tenant.slug}


def whole(
    request: HttpRequest,
    cluster: Cluster,
    *,
    form: ClusterForm | None = None,
    bind: BindingForm | None = None,
    refused: bool = False,
    **more: Any,
) -> HttpResponse:
    """The page of a cluster."""
    shown = {"form": form or ClusterForm(cluster=cluster), "bind": bind or BindingForm(), **living(cluster), **more}
    return render(request, "clusters/cluster.html", shown, status=422 if refused else 200)


def living(cluster: Any) -> dict[str, Any]:
    """What changes by itself."""
    pods = PodClaim.objects.live().filter(cluster=cluster).select_related("node", "claim__tenant")
    sharepods = SharePod.objects.filter(cluster=cluster, ended_at=None).select_related("claim__tenant")
    return {
        "cluster": cluster,
        "watching": watchers.is_led(),
        # What has no claim first: it is what an operator has to mend.
        "pods": pods.order_by(F("claim").asc(nulls_first=True), "namespace", "pod")[:MOST_PODS],
        "more_pods": max(0, cluster.containers - MOST_PODS),
        "sharepods": sharepods.order_by("namespace", "name")[:MOST_PODS],
        "bindings": cluster.bindings.select_related("tenant").order_by("namespace", "pk"),
    }


def _changed(request: HttpRequest, principal: Principal, form: ClusterForm) -> tuple[dict[str, Any], bool]:
    """What to show beside the form, and whether the change was made."""
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
    told = ", ".join(str(form.fields[name].label).lower() for name in sorted(changes))
    said = _("{0} is changed: {1}.") if changes else _("Nothing was to be changed.")
    messages.success(request, said.format(form.cluster, told))
    return {}, True


@require_GET
@page
def connection(request: HttpRequest, principal: Principal, name: str) -> HttpResponse:
    """Try the connection now: a part of the page, or the page with it."""
    principal.require_operator()
    cluster = find(name)
    tried = connections.attempt(principal=principal, cluster=cluster)
    if wants_fragment(request):
        return render(request, "clusters/_connection.html", {"tried": tried})
    return whole(request, cluster, tried=tried)


@require_http_methods(METHODS)
@page
def remove(request: HttpRequest, principal: Principal, name: str) -> HttpResponse:
    """What forgetting the cluster would do; and, posted, doing it."""
    principal.require_operator()
    cluster = find(name)
    refusal = ""
    if request.method == "POST":
        try:
            clusters.remove(principal=principal, cluster=cluster, versions=seen(request))
        except GpucloudError as error:
            refusal = _(error.detail)
        else:
            messages.success(request, _("Cluster {0} is forgotten.").format(name))
            return redirect("clusters")
    whose = Q(container__cluster=cluster) | Q(sharepod__cluster=cluster)
    holding = Claim.objects.live().filter(whose).distinct().select_related("tenant").order_by("name")
    shown = {"cluster": cluster, "holding": holding[:MOST_PODS], "refusal": refusal}
    return render(request, "clusters/remove.html", shown, status=409 if refusal else 200)
