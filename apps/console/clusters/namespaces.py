"""The bindings of a cluster's namespaces to tenants, and the state of their ResourceQuotas."""

from typing import Any

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from apps.clusters.models import NamespaceBinding, PodClaim
from apps.clusters.services import bindings, quota_drift
from apps.console.clusters.cluster_forms import BindingForm, RebindForm
from apps.console.clusters.clusters import MOST_PODS, find, render_cluster
from apps.console.shell.forms import posted_versions
from apps.console.shell.page_access import page
from apps.quotas.models import AuditEvent
from apps.quotas.principals import Principal
from gpucloud.errors import GpucloudError, PreconditionFailed


@require_GET
@page
def quotas(request: HttpRequest, principal: Principal, name: str) -> HttpResponse:
    """Render the quota fragment of a cluster's page, which asks its API server after the page has loaded."""
    standing = quota_drift.read(principal=principal, cluster=find(name))
    return render(request, "clusters/_quotas.html", {"standing": standing})


@require_POST
@page
def bind(request: HttpRequest, principal: Principal, name: str) -> HttpResponse:
    """Charge a namespace to a tenant from now on."""
    principal.require_operator()
    cluster, form = find(name), BindingForm(request.POST)
    if form.is_valid():
        try:
            row = bindings.bind(principal=principal, cluster=cluster, **form.values)
        except GpucloudError as error:
            form.refuse(error)
        else:
            messages.success(request, _("{0} is charged for {1} from now on.").format(row.tenant, describe(row)))
            return redirect("cluster", name=name)
    return render_cluster(request, cluster, bind=form, refused=True)


def describe(row: NamespaceBinding) -> str:
    """Return the namespaces of a binding in words."""
    if row.namespace is not None:
        return _("namespace {0}").format(row.namespace)
    labels = ", ".join(f"{name}={value}" for name, value in sorted((row.selector or {}).items()))
    return _("namespaces with {0}").format(labels) if labels else _("every namespace")


@require_http_methods(["GET", "POST"])
@page
def unbind(request: HttpRequest, principal: Principal, name: str, pk: int) -> HttpResponse:
    """Show the effect of ending the binding; end it if posted."""
    principal.require_operator()
    cluster, row = find(name), _binding(name, pk)
    if request.method == "POST":
        bindings.unbind(principal=principal, binding=row)
        messages.success(request, _("{0} is no longer charged for new pods in {1}.").format(row.tenant, describe(row)))
        return redirect("cluster", name=name)
    return render(
        request, "clusters/unbind.html", {"cluster": cluster, "row": row, "about": describe(row), **_effect(row)}
    )


def _binding(name: str, pk: int) -> NamespaceBinding:
    row = NamespaceBinding.objects.select_related("tenant", "cluster").filter(cluster__name=name, pk=pk).first()
    if row is None:
        raise Http404("There is no such binding.")
    return row


@require_http_methods(["GET", "POST"])
@page
def rebind(request: HttpRequest, principal: Principal, name: str, pk: int) -> HttpResponse:
    """Charge new pods to another tenant from now on."""
    principal.require_operator()
    cluster, row = find(name), _binding(name, pk)
    form = RebindForm(request.POST or None, initial={"tenant": row.tenant.slug, "version": row.version})
    shown: dict[str, Any] = {}
    if request.method == "POST" and form.is_valid():
        shown, done = _apply_rebind(request, principal, row, form)
        if done:
            return redirect("cluster", name=name)
    refused = form.is_bound and not form.is_valid()
    row = _binding(name, pk)
    shown |= {"cluster": cluster, "row": row, "about": describe(row), "form": form, **_effect(row)}
    return render(request, "clusters/rebind.html", shown, status=422 if refused else 200)


def _apply_rebind(
    request: HttpRequest, principal: Principal, row: NamespaceBinding, form: RebindForm
) -> tuple[dict[str, Any], bool]:
    """Return the context beside the form, and True if another tenant pays."""
    tenant, versions = form.cleaned_data["tenant"], posted_versions(request)
    if tenant == row.tenant and row.version in versions:
        messages.info(request, _("Nothing has changed."))
        return {}, True
    try:
        row = bindings.change(principal=principal, binding=row, tenant=tenant, versions=versions)
    except PreconditionFailed:
        row.refresh_from_db()
        events = AuditEvent.objects.filter(object_type="namespace", object_id=bindings.known_as(row))
        form.data = {**dict(form.data.items()), "version": str(row.version)}
        return {"conflict": events.order_by("-pk").first(), "said": str(row.tenant)}, False
    except GpucloudError as error:
        form.refuse(error)
        return {}, False
    messages.success(request, _("{0} is charged for {1} from now on.").format(row.tenant, describe(row)))
    return {}, True


def _effect(row: NamespaceBinding) -> dict[str, Any]:
    """Return the tenant's running pods there, and who pays afterwards as far as names say it."""
    pods = PodClaim.objects.live().filter(cluster=row.cluster, claim__tenant=row.tenant).select_related("claim")
    if row.namespace is not None:
        pods = pods.filter(namespace=row.namespace)
    others = row.cluster.bindings.exclude(pk=row.pk).select_related("tenant")
    by_labels = [other for other in others if other.selector is not None]
    return {
        "pods": pods.order_by("namespace", "pod")[:MOST_PODS],
        "by_labels": [(describe(one), one) for one in by_labels],
    }
