"""Connection, change and removal of clusters. Credentials are never shown, nor in the audit log."""

import json
from typing import Any

from django.db import transaction
from django.db.models import Q

from apps.clusters.models import Cluster
from apps.clusters.services import kubeconfigs, outside, sealing
from apps.quotas.models import Pool
from apps.quotas.principals import Principal
from apps.quotas.services import audit
from apps.quotas.services.names import NameTaken, refuse_taken
from apps.quotas.services.tenants import InUse
from apps.scheduling.models import Claim
from gpucloud.api import etags
from gpucloud.errors import Invalid


class ReachedInTwoWays(Invalid, code="reached-in-two-ways", title="Say one way to reach the cluster"):
    """Both a kubeconfig and `in_cluster` are given, or neither."""


@transaction.atomic
def connect(
    *,
    principal: Principal,
    name: str,
    pool: Pool,
    kubeconfig: str | None = None,
    in_cluster: bool = False,
    **values: Any,
) -> Cluster:
    """Store a cluster's connection. Raises KubeconfigRefused, ReachedInTwoWays, NameTaken, Denied."""
    principal.require_operator()
    cluster = Cluster(name=name, pool=pool, in_cluster=in_cluster, **values)
    if in_cluster == (kubeconfig is not None):
        raise ReachedInTwoWays("Give a kubeconfig, or in_cluster: true where this runs in the cluster itself.")
    _reach(cluster, kubeconfig)
    with refuse_taken(lambda: NameTaken(f"There is a cluster {name} already.", name=name)):
        cluster.save()
    _note(cluster, principal=principal, action="connect", pool=pool.name, server=cluster.server, **values)
    return cluster


@transaction.atomic
def change(*, principal: Principal, cluster: Cluster, versions: etags.Versions = None, **values: Any) -> Cluster:
    """Set the given values. Raises KubeconfigRefused, ReachedInTwoWays, PreconditionFailed, Denied."""
    cluster = _lock_row(principal, cluster, versions)
    told = {name: str(value) for name, value in values.items() if name != "kubeconfig"}
    if (kubeconfig := values.pop("kubeconfig", None)) is not None:
        if cluster.in_cluster:
            raise ReachedInTwoWays("This cluster is reached from within: connect it anew under another name.")
        _reach(cluster, kubeconfig)
        values |= {"sealed_kubeconfig": cluster.sealed_kubeconfig, "server": cluster.server}
        told["server"] = cluster.server
    cluster.change(**values)
    _note(cluster, principal=principal, action="change", **told)
    return cluster


@transaction.atomic
def remove(*, principal: Principal, cluster: Cluster, versions: etags.Versions = None) -> None:
    """Remove the cluster. Raises InUse while its pods or ResourceClaims hold claims, PreconditionFailed, Denied.

    The pods of a deleted cluster are never reported as ended: release their claims like any others.
    """
    principal.require_operator()
    # Order of locks: GPUs before the cluster, as in the writers of its pods' GPU use.
    outside.drop_all(cluster)
    cluster = _lock_row(principal, cluster, versions)
    whose = Q(container__cluster=cluster) | Q(sharepod__cluster=cluster) | Q(device_claim__cluster=cluster)
    if held := Claim.objects.live().filter(whose).distinct().count():
        raise InUse(
            f"Pods of {cluster.name} hold {held} claims: end them, or release the claims where the cluster is gone.",
            claims=held,
        )
    _note(cluster, principal=principal, action="remove")
    cluster.pods.all().delete()
    cluster.device_claims.all().delete()
    cluster.delete()


def kubeconfig_of(cluster: Cluster) -> dict[str, Any] | None:
    """Return the credentials in clear text; None: those of this process's pod. Raises SealBroken."""
    if cluster.sealed_kubeconfig is None:
        return None
    config: dict[str, Any] = json.loads(sealing.unseal(cluster.uid, cluster.sealed_kubeconfig))
    return config


def _reach(cluster: Cluster, kubeconfig: str | None) -> None:
    if kubeconfig is not None:
        config = kubeconfigs.parse(kubeconfig)
        cluster.server = kubeconfigs.server(config)
        cluster.sealed_kubeconfig = sealing.seal(cluster.uid, json.dumps(config))


def _lock_row(principal: Principal, cluster: Cluster, versions: etags.Versions) -> Cluster:
    principal.require_operator()
    return etags.lock(cluster, versions, "pool")


def _note(cluster: Cluster, *, principal: Principal, action: str, **after: Any) -> None:
    """Write the audit log. No hint is sent: `manage.py clusters` polls all clusters each second."""
    audit.record(principal, f"cluster.{action}", cluster, after=after or None)
