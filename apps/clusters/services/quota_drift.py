"""Comparison of the namespaces' ResourceQuotas with their tenants' quotas, read live."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from apps.clusters.core import quantities
from apps.clusters.kube.client import Client
from apps.clusters.models import Cluster
from apps.clusters.services import bindings, connections, quota_sync
from apps.quotas.principals import Principal
from gpucloud.errors import GpucloudError

# Kubernetes accepts limits of extended resources in a ResourceQuota but never counts them.
NEVER_COUNTED = "limits.tencent.com/"


@dataclass(frozen=True, slots=True)
class Amount:
    """One resource of one namespace, in Kubernetes' units; None: not limited."""

    namespace: str
    tenant: str
    resource: str
    wanted: int | None
    there: int | None
    # Usage that Kubernetes counts; None if it does not.
    used: int | None

    @property
    def in_step(self) -> bool:
        """True if Kubernetes enforces the tenant's quota."""
        return self.wanted == self.there


@dataclass(frozen=True, slots=True)
class NeverCounted:
    """An amount in a ResourceQuota that looks like a limit and is not."""

    namespace: str
    quota: str
    resource: str


@dataclass(slots=True)
class Standing:
    """Result for all bound namespaces. `synced`: differences are corrected within seconds."""

    synced: bool
    # Reason why the cluster did not answer; empty if it did.
    reason: str = ""
    amounts: list[Amount] = field(default_factory=list)
    never_counted: list[NeverCounted] = field(default_factory=list)


def read(*, principal: Principal, cluster: Cluster) -> Standing:
    """Return the present comparison. Raises Denied."""
    principal.require_operator()
    try:
        return _standing(cluster, connections.client_of(cluster))
    except GpucloudError as error:
        return Standing(synced=cluster.sync_quotas, reason=error.detail)


def _standing(cluster: Cluster, client: Client) -> Standing:
    labels = {item["metadata"]["name"]: item["metadata"].get("labels") or {} for item in _all(client, "namespaces")}
    quotas = _all(client, "resourcequotas")
    ours = {quota["metadata"]["namespace"]: quota for quota in quotas if quota["metadata"]["name"] == quota_sync.NAME}
    standing = Standing(synced=cluster.sync_quotas, never_counted=[one for quota in quotas for one in _loose(quota)])
    rows = list(cluster.bindings.select_related("tenant"))
    for namespace in sorted(labels):
        tenant = bindings.tenant_of(rows, namespace, labels[namespace])
        if tenant is not None:
            wanted = quota_sync.hard_limits(cluster, tenant, namespace)
            standing.amounts += _amounts(namespace, tenant.slug, wanted, ours.get(namespace))
    return standing


def _all(client: Client, kind: str) -> list[Any]:
    return [msgspec.json.decode(item) for item in client.list(f"/api/v1/{kind}")[0]]


def _amounts(namespace: str, tenant: str, wanted: Mapping[str, str], quota: Mapping[str, Any] | None) -> list[Amount]:
    there = _hard(quota)
    used = ((quota or {}).get("status") or {}).get("used") or {}
    return [
        Amount(namespace, tenant, name, _number(wanted.get(name)), _number(there.get(name)), _number(used.get(name)))
        for name in sorted({*wanted, *there})
    ]


def _hard(quota: Mapping[str, Any] | None) -> Mapping[str, Any]:
    return ((quota or {}).get("spec") or {}).get("hard") or {}


def _number(quantity: Any) -> int | None:
    return None if quantity is None else quantities.value(quantity)


def _loose(quota: Mapping[str, Any]) -> list[NeverCounted]:
    meta = quota["metadata"]
    return [
        NeverCounted(meta["namespace"], meta["name"], name) for name in _hard(quota) if name.startswith(NEVER_COUNTED)
    ]
