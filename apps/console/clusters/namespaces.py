"""The bindings of a cluster's namespaces to tenants, and the state of their ResourceQuotas."""

from typing import Any

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.views.decorators.http import require_GET, require_http_methods

from apps.clusters.models import NamespaceBinding, PodClaim
from apps.clusters.services import bindings, quota_drift
from apps.console.clusters.cluster_forms import BindingForm, RebindForm
from apps.console.clusters.clusters import MOST_PODS, ClusterPage, find
from apps.console.shell.form_page import FormPage, Link
from apps.console.shell.page_access import page
from apps.quotas.principals import Principal


@require_GET
@page
def quotas(request: HttpRequest, principal: Principal, name: str) -> HttpResponse:
    """Render the quota fragment of a cluster's page, which asks its API server after the page has loaded."""
    standing = quota_drift.read(principal=principal, cluster=find(name))
    return render(request, "clusters/_quotas.html", {"standing": standing})


class Bind(ClusterPage):
    """A new binding, from the form on the cluster's page."""

    http_method_names = ["post"]

    def form(self, data: Any = None) -> BindingForm:
        """Return the form of the binding."""
        return BindingForm(data)

    def act(self, form: BindingForm) -> NamespaceBinding:
        """Charge the namespaces to a tenant from now on."""
        return bindings.bind(principal=self.principal, cluster=self.row, **form.values)

    def finish(self, form: BindingForm, done: NamespaceBinding) -> HttpResponse:
        """Return to the cluster."""
        self.say(_("{0} is charged for {1} from now on.").format(done.tenant, describe(done)))
        return redirect("cluster", name=self.row.name)

    def show(self, form: BindingForm, /, **more: Any) -> HttpResponse:
        """Show the refusal beside the present settings."""
        return super().show(form, **{"bind": form, "form": super().form(), **more})


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


class Rebind(FormPage):
    """Another tenant that is charged for new pods."""

    template_name, operators_only, object_type = "clusters/rebind.html", True, "namespace"

    def find(self) -> NamespaceBinding:
        """Return the binding."""
        return _binding(self.kwargs["name"], self.kwargs["pk"])

    def form(self, data: Any = None) -> RebindForm:
        """Return the form with the present tenant."""
        return RebindForm(data, initial={"tenant": self.row.tenant.slug, "version": self.row.version})

    def act(self, form: RebindForm) -> bool:
        """Change the tenant; return False if nothing was to be changed."""
        tenant, versions = form.cleaned_data["tenant"], form.versions or frozenset()
        if tenant == self.row.tenant and self.row.version in versions:
            return False
        self.row = bindings.change(principal=self.principal, binding=self.row, tenant=tenant, versions=versions)
        return True

    def finish(self, form: RebindForm, done: bool) -> HttpResponse:
        """Return to the cluster."""
        said = _("{0} is charged for {1} from now on.") if done else _("Nothing has changed.")
        self.say(said.format(self.row.tenant, describe(self.row)))
        return super().finish(form, done)

    def describe(self) -> str:
        """Return the present tenant."""
        return str(self.row.tenant)

    def more_context(self) -> dict[str, Any]:
        """Return the binding and the pods that run there."""
        return {"cluster": self.row.cluster, "row": self.row, **_effect(self.row)}

    @property
    def heading(self) -> str:
        """The title of the page."""
        return _("Tenant of {0}").format(describe(self.row))

    @property
    def crumbs(self) -> list[Link]:
        """The cluster."""
        return [(reverse("cluster", args=[self.row.cluster.name]), self.row.cluster.name)]

    @property
    def audited_key(self) -> str:
        """The binding's name."""
        return bindings.known_as(self.row)


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
