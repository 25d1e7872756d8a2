"""Bindings of namespaces to tenants."""

from collections.abc import Callable, Iterable, Mapping

from django.db import transaction

from apps.clusters.models import Cluster, NamespaceBinding
from apps.quotas.models import Tenant
from apps.quotas.principals import Principal
from apps.quotas.services import audit
from apps.quotas.services.names import NameTaken, refuse_taken
from gpucloud.api import etags
from gpucloud.errors import GpucloudError, Invalid


class NameOrLabels(Invalid, code="name-or-labels", title="Say which namespaces"):
    """A binding has both a name and a selector, or neither."""


@transaction.atomic
def bind(
    *,
    principal: Principal,
    cluster: Cluster,
    tenant: Tenant,
    namespace: str | None = None,
    selector: dict[str, str] | None = None,
) -> NamespaceBinding:
    """Charge these namespaces' pods to the tenant from now on. Raises NameOrLabels, NameTaken, Denied."""
    principal.require_operator()
    if (namespace is None) == (selector is None):
        raise NameOrLabels("Give a namespace's name, or a selector of labels.")
    with refuse_taken(lambda: NameTaken(f"Namespace {namespace} is bound already.", name=namespace)):
        row = NamespaceBinding.objects.create(cluster=cluster, namespace=namespace, selector=selector, tenant=tenant)
    _note(row, principal=principal, action="bind")
    return row


@transaction.atomic
def change(
    *, principal: Principal, binding: NamespaceBinding, tenant: Tenant, versions: etags.Versions = None
) -> NamespaceBinding:
    """Charge new pods to another tenant; running pods stay charged as they are. Raises Denied."""
    binding = _lock_row(principal, binding, versions)
    binding.change(tenant=tenant)
    _note(binding, principal=principal, action="rebind")
    return binding


@transaction.atomic
def unbind(*, principal: Principal, binding: NamespaceBinding, versions: etags.Versions = None) -> None:
    """Remove the binding: new pods are charged to nobody, running pods stay charged. Raises Denied."""
    binding = _lock_row(principal, binding, versions)
    _note(binding, principal=principal, action="unbind")
    binding.delete()


def tenant_of(bindings: Iterable[NamespaceBinding], name: str, labels: dict[str, str]) -> Tenant | None:
    """Return the tenant that pays for this namespace: bound by name, else by the oldest matching selector."""
    matching = [row for row in bindings if row.matches(name, labels)]
    matching.sort(key=lambda row: (row.namespace is None, row.pk))
    return matching[0].tenant if matching else None


class Unbound(GpucloudError, code="namespace-unbound", title="The namespace is bound to no tenant"):
    """No tenant pays for the namespace."""


def payer(cluster: Cluster, namespace: str, labels: Callable[[], Mapping[str, str]]) -> Tenant:
    """Return the tenant that pays for this namespace, whose labels are read if they matter. Raises Unbound."""
    rows = list(cluster.bindings.select_related("tenant"))
    named = any(row.namespace == namespace for row in rows) or not any(row.selector for row in rows)
    tenant = tenant_of(rows, namespace, {} if named else dict(labels()))
    if tenant is None:
        raise Unbound(f"Namespace {namespace} is bound to no tenant: bind it.", namespace=namespace)
    return tenant


def known_as(row: NamespaceBinding) -> str:
    """Return the binding's name in the audit log."""
    return f"{row.cluster.name}/{row.namespace or row.selector}"[:200]


def _lock_row(principal: Principal, binding: NamespaceBinding, versions: etags.Versions) -> NamespaceBinding:
    principal.require_operator()
    return etags.lock(binding, versions, "cluster", "tenant")


def _note(row: NamespaceBinding, *, principal: Principal, action: str) -> None:
    audit.record(
        principal,
        f"namespace.{action}",
        audit.Named("namespace", known_as(row)),
        tenant=row.tenant,
        after={"tenant": row.tenant.slug},
    )
