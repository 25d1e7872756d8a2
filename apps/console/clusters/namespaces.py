"""Which tenant pays for which namespaces of a cluster, and how their ResourceQuotas stand."""

from typing import Any

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from apps.clusters.models import NamespaceBinding, PodClaim
from apps.clusters.services import bindings, quota_drift
from apps.console.clusters.cluster_forms import BindingForm, RebindForm
from apps.console.clusters.clusters import MOST_PODS, find, whole
from apps.console.shell.forms import seen
from apps.console.shell.page_access import page
from apps.quotas.models import AuditEvent
from apps.quotas.principals import Principal
from gpucloud.errors import GpucloudError, PreconditionFailed


@require_GET
@page
def quotas(request: HttpRequest, principal: Principal, name: str) -> HttpResponse:
    """The part of a cluster's page that asks its API server; it comes after the page."""
    standing = quota_drift.read(principal=principal, cluster=find(name))
    return render(request, "clusters/_quotas.html", {"standing": standing})


@require_POST
@page
def bind(request: HttpRequest, principal: Principal, name: str) -> HttpResponse:
    """Have a tenant pay for a namespace from now on."""
    principal.require_operator()
    cluster, form = find(name), BindingForm(request.POST)
    if form.is_valid():
        try:
            row = bindings.bind(principal=principal, cluster=cluster, **form.values)
        except GpucloudError as error:
            form.refuse(error)
        else:
            messages.success(request, _("{0} pays for {1} from now on.").format(row.tenant, said(row)))
            return redirect("cluster", name=name)
    return whole(request, cluster, bind=form, refused=True)


def said(row: NamespaceBinding) -> str:
    """The namespaces in words."""
    if row.namespace is not None:
        return _("namespace {0}").format(row.namespace)
    labels = ", ".join(f"{name}={value}" for name, value in sorted((row.selector or {}).items()))
    return _("namespaces with {0}").format(labels) if labels else _("every namespace")


@require_http_methods(["GET", "POST"])
@page
def unbind(request: HttpRequest, principal: Principal, name: str, pk: int) -> HttpResponse:
    """What ending the binding would do; and, posted, doing it."""
    principal.require_operator()
    cluster, row = find(name), _binding(name, pk)
    if request.method == "POST":
        bindings.unbind(principal=principal, binding=row)
        messages.success(request, _("{0} no longer pays for what comes to {1}.").format(row.tenant, said(row)))
        return redirect("cluster", name=name)
    return render(request, "clusters/unbind.html", {"cluster": cluster, "row": row, "about": said(row), **_effect(row)})


def _binding(name: str, pk: int) -> NamespaceBinding:
    row = NamespaceBinding.objects.select_related("tenant", "cluster").filter(cluster__name=name, pk=pk).first()
    if row is None:
        raise Http404("There is no such binding.")
    return row


@require_http_methods(["GET", "POST"])
@page
def rebind(request: HttpRequest, principal: Principal, name: str, pk: int) -> HttpResponse:
    """Have another tenant pay for what comes from now on."""
    principal.require_operator()
    cluster, row = find(name), _binding(name, pk)
    form = RebindForm(request.POST or None, initial={"tenant": row.tenant.slug, "version": row.version})
    shown: dict[str, Any] = {}
    if request.method == "POST" and form.is_valid():
        shown, done = _rebound(request, principal, row, form)
        if done:
            return redirect("cluster", name=name)
    refused = form.is_bound and not form.is_valid()
    row = _binding(name, pk)
    shown |= {"cluster": cluster, "row": row, "about": said(row), "form": form, **_effect(row)}
    return render(request, "clusters/rebind.html", shown, status=422 if refused else 200)


def _rebound(
    request: HttpRequest, principal: Principal, row: NamespaceBinding, form: RebindForm
) -> tuple[dict[str, Any], bool]:
    """What to show beside the form, and whether another pays."""
    tenant, versions = form.cleaned_data["tenant"], seen(request)
    if tenant == row.tenant and row.version in versions:
        messages.info(request, _("Nothing was to be changed."))
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
    messages.success(request, _("{0} pays for {1} from now on.").format(row.tenant, said(row)))
    return {}, True


def _effect(row: NamespaceBinding) -> dict[str, Any]:
    """What runs there for the tenant, and who pays afterwards as far as names say it."""
    pods = PodClaim.objects.live().filter(cluster=row.cluster, claim__tenant=row.tenant).select_related("claim")
    if row.namespace is not None:
        pods = pods.filter(namespace=row.namespace)
    others = row.cluster.bindings.exclude(pk=row.pk).select_related("tenant")
    by_labels = [other for other in others if other.selector is not None]
    return {"pods": pods.order_by("namespace", "pod")[:MOST_PODS], "by_labels": [(said(one), one) for one in by_labels]}
