"""Tenants' quotas as ResourceQuotas in their namespaces, so that Kubernetes refuses pods beyond the ledger.

A namespace may have what its own pods hold plus what its tenant's quotas have free; the tenant's holdings elsewhere, in
other namespaces or outside of Kubernetes, are subtracted. Kubernetes enforces `requests.tencent.com/…` only; HAMi's
scheduler counts the `limits.nvidia.com/…` beside them. An annotation repeats what was written; if the quota differs
from it, somebody else changed it: it is corrected and noted in the audit log.
"""

import json
import logging
from collections.abc import Mapping
from typing import Any

import msgspec
from django.db.models import Q, Sum

from apps.clusters.core import quantities
from apps.clusters.core.gpu_admission import CORE, MEMORY
from apps.clusters.formats import hami
from apps.clusters.formats.gpu_manager import UNIT_MIB
from apps.clusters.kube.client import Client, Refused
from apps.clusters.kube.objects import Quota
from apps.clusters.models import Cluster
from apps.clusters.services import bindings
from apps.quotas.models import Resource, ResourceQuota, Tenant
from apps.quotas.services import audit
from apps.scheduling.models import Claim

logger = logging.getLogger(__name__)

NAME = "gpucloud"
OURS = {"app.kubernetes.io/managed-by": "gpucloud"}
WRITTEN = "gpucloud.io/written"
# Kubernetes' resources of each of our resources, with the number of our units in one of theirs.
RESOURCES = {
    Resource.CORE_PERCENT: {f"requests.{CORE}": 1, f"limits.{hami.CORES}": 1},
    Resource.MEMORY_MIB: {f"requests.{MEMORY}": UNIT_MIB, f"limits.{hami.MEMORY}": 1},
}


def hard_limits(cluster: Cluster, tenant: Tenant, namespace: str) -> dict[str, str]:
    """Return the namespace's `spec.hard`, without unlimited resources."""
    hard: dict[str, str] = {}
    for resource, names in RESOURCES.items():
        covering = ResourceQuota.objects.filter(Q(pool=cluster.pool) | Q(pool=None), tenant=tenant, resource=resource)
        rows = list(covering.values_list("hard", "used"))
        held = _held_by_namespace(cluster, tenant, namespace, resource)
        # Without a quota a tenant may hold none.
        room = [most - used + held for most, used in rows if most is not None] if rows else [0]
        if room:
            hard |= {name: str(max(0, min(room)) // unit) for name, unit in names.items()}
    return hard


def _held_by_namespace(cluster: Cluster, tenant: Tenant, namespace: str, resource: str) -> int:
    """Return the charges of the namespace's pods and of its SharePods without a pod: each is one claim."""
    pods = Q(container__cluster=cluster, container__namespace=namespace)
    sharepods = Q(sharepod__cluster=cluster, sharepod__namespace=namespace)
    here = Claim.objects.filter(pods | sharepods, tenant=tenant)
    return int(here.aggregate(sum=Sum(f"charged_{resource}", default=0))["sum"])


def sync(*, cluster: Cluster, client: Client, namespaces: Mapping[str, Mapping[str, str]]) -> int:
    """Correct every bound namespace's quota; return the number written. Raises Unreachable, Refused.

    Refusals in one namespace are logged and retried the next time; the others are written.
    """
    # Found by name: a label could be removed, and the existing quota would not be found.
    items, _ = client.list("/api/v1/resourcequotas", fieldSelector=f"metadata.name={NAME}")
    there = {quota.metadata.namespace: quota for quota in (msgspec.json.decode(item, type=Quota) for item in items)}
    rows = list(cluster.bindings.select_related("tenant"))
    written = 0
    for namespace, labels in sorted(namespaces.items()):
        tenant = bindings.tenant_of(rows, namespace, dict(labels))
        if tenant is None:
            continue
        try:
            written += _sync(cluster, client, namespace, tenant, there.get(namespace))
        except (Refused, quantities.NotAQuantity) as error:
            logger.warning("quota of namespace %s of cluster %s: %s", namespace, cluster.name, error)
    return written


def _amounts(hard: Mapping[str, Any]) -> dict[str, str]:
    """Return the amounts in our spelling: the API server turns 9000 into `9k`."""
    return {name: str(quantities.value(amount)) for name, amount in hard.items()}


def _before(there: Quota) -> dict[str, Any] | None:
    """Return the amounts written last; None if the annotation is unreadable."""
    try:
        found = json.loads((there.metadata.annotations or {}).get(WRITTEN) or "")
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _sync(cluster: Cluster, client: Client, namespace: str, tenant: Tenant, there: Quota | None) -> int:
    due, path = hard_limits(cluster, tenant, namespace), f"/api/v1/namespaces/{namespace}/resourcequotas"
    text = json.dumps(due, sort_keys=True)
    metadata = {"name": NAME, "labels": OURS, "annotations": {WRITTEN: text}}
    if there is None:
        try:
            client.post(path, {"metadata": metadata, "spec": {"hard": due}})
        except Refused as error:
            if error.status != 404:  # the namespace is being removed
                raise
            return 0
        return 1
    now, before = _amounts(there.spec.hard or {}), _before(there)
    if now == before == due:
        return 0
    # A merge keeps unnamed keys: resources without a limit are removed by name.
    gone: dict[str, Any] = dict.fromkeys(now.keys() - due.keys())
    client.patch(f"{path}/{there.metadata.name}", {"metadata": metadata, "spec": {"hard": {**gone, **due}}})
    if now != before:
        audit.record(
            cluster.principal,
            "namespace.quota_repaired",
            audit.Named("namespace", f"{cluster.name}/{namespace}"),
            tenant=tenant,
            before={"hard": now},
            after={"hard": due},
        )
    return 1
