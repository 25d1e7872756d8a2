"""Checks of a cluster's connection: reachability and permissions.

`NEEDS` are the rules of the ClusterRole `gpucloud-cluster` of the Helm chart, each with its purpose.
`OWN_NEEDS` are those of `gpucloud-web`: the requests of this process itself, where it runs in the cluster under an
account of its own.
"""

import logging
import time
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec
from django.conf import settings

from apps.clusters.kube.client import Client, Refused
from apps.clusters.models import Cluster
from apps.clusters.services.clusters import kubeconfig_of
from apps.nodes.models import Node
from apps.quotas.principals import Principal
from gpucloud.errors import Conflict, GpucloudError

logger = logging.getLogger(__name__)

REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
REVIEWS_OF_OTHERS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"


class CredentialsUnusable(Conflict, code="credentials-unusable", title="The cluster's credentials cannot be used"):
    """The client library rejects the cluster's credentials."""


class Need(NamedTuple):
    """Permissions on one kind of object, in all namespaces."""

    group: str
    # Includes the subresource: `pods/binding`.
    resource: str
    verbs: tuple[str, ...]
    purpose: str
    # Restricts the permission to one object.
    name: str = ""


NEEDS = (
    Need("", "nodes", ("get", "list", "watch"), "to know its nodes"),
    Need("", "namespaces", ("get", "list", "watch"), "to find the tenants of pods"),
    Need("", "pods", ("get", "list", "watch", "patch"), "to see pods, and to assign their GPUs"),
    Need("", "pods/binding", ("create",), "to bind pods, if kube-scheduler leaves that to the extender"),
    Need("", "pods/eviction", ("create",), "to evict pods that must make room"),
    Need("", "resourcequotas", ("get", "list", "watch", "create", "patch", "update"), "to write tenants' quotas"),
    Need("", "events", ("create",), "to report resizes to pods"),
    Need("", "configmaps", ("get",), "to take over gpu-admission's quotas", name="gpuquota"),
    Need("kubeshare.nthu", "sharepods", ("list",), "to take over SharePods"),
    Need("authentication.k8s.io", "tokenreviews", ("create",), "to let agents of its nodes join by themselves"),
)

# Where an agent is a DRA driver: the rules of `gpucloud-devices`.
DEVICE_NEEDS = (
    Need("resource.k8s.io", "resourceclaims", ("get", "list", "watch"), "to follow ResourceClaims"),
    Need("resource.k8s.io", "resourceclaims/status", ("patch",), "to report what is in force"),
    Need(
        "resource.k8s.io",
        "resourceclaims/driver",
        ("arbitrary-node:patch",),
        "to report it as the driver",
        name="gpucloud.io",
    ),
    Need(
        "resource.k8s.io", "resourceslices", ("get", "list", "watch", "create", "update", "delete"), "to publish GPUs"
    ),
    Need("resource.k8s.io", "deviceclasses", ("get", "create", "delete"), "to create and withdraw DeviceClasses"),
)

OWN_NEEDS = (
    Need("", "namespaces", ("list",), "to find the tenants of pods"),
    Need("", "resourcequotas", ("list",), "to compare quotas"),
    Need("", "pods", ("get", "list"), "to take over pods, and to know an agent's node"),
    Need("", "configmaps", ("get",), "to take over gpu-admission's quotas", name="gpuquota"),
    Need("kubeshare.nthu", "sharepods", ("list",), "to take over SharePods"),
    Need("authentication.k8s.io", "tokenreviews", ("create",), "to let agents of its nodes join by themselves"),
    Need("authorization.k8s.io", "subjectaccessreviews", ("create",), "to test the rights of CLUSTER_ACCOUNT"),
)


@dataclass(frozen=True, slots=True)
class Missing:
    """A permission that our account lacks in the cluster."""

    verb: str
    resource: str
    group: str
    purpose: str


@dataclass(slots=True)
class Tried:
    """Result of a check. `reason`: why the cluster was not reached."""

    reached: bool
    reason: str = ""
    kubernetes_version: str = ""
    # Time to the first answer, including the connection.
    answer_seconds: float | None = None
    missing: list[Missing] = field(default_factory=list)


def client_of(cluster: Cluster) -> Client:
    """Return a client of the cluster. Raises SealBroken, CredentialsUnusable."""
    config = kubeconfig_of(cluster)
    try:
        return Client(config)
    except Exception as error:
        # The library raises any exception about credentials.
        raise CredentialsUnusable(f"The credentials of {cluster.name} cannot be used: {error}") from error


def attempt(*, principal: Principal, cluster: Cluster) -> Tried:
    """Query the version, then each permission. Changes nothing. Raises Denied.

    In its own cluster this process may have an account of its own beside that of the extender and the watch
    (CLUSTER_ACCOUNT): then the permissions of both are queried.
    """
    principal.require_operator()
    other = settings.CLUSTER_ACCOUNT if cluster.in_cluster else ""
    began = time.monotonic()
    try:
        client = client_of(cluster)
        version = client.version()
        took = time.monotonic() - began
        has_devices = Node.objects.filter(pool=cluster.pool_id, dra=True).exists()
        needs = (*NEEDS, *(DEVICE_NEEDS if has_devices else ()))
        missing = [gap for need in (OWN_NEEDS if other else needs) for gap in _missing(client, need)]
        if other:
            missing += [gap for need in needs for gap in _missing(client, need, account=other)]
    except GpucloudError as error:
        return Tried(reached=False, reason=error.detail)
    return Tried(reached=True, kubernetes_version=version, answer_seconds=round(took, 3), missing=missing)


def _missing(client: Client, need: Need, *, account: str = "") -> list[Missing]:
    purpose = f"{need.purpose} (account {account})" if account else need.purpose
    return [
        Missing(verb, need.resource, need.group, purpose)
        for verb in need.verbs
        if not _may(client, need, verb, account)
    ]


def _may(client: Client, need: Need, verb: str, account: str) -> bool:
    resource, _, sub = need.resource.partition("/")
    asked = {"verb": verb, "group": need.group, "resource": resource, "subresource": sub, "name": need.name}
    spec: dict[str, Any] = {"resourceAttributes": asked}
    if account:
        namespace, _, name = account.partition("/")
        groups = ["system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated"]
        spec |= {"user": f"system:serviceaccount:{namespace}:{name}", "groups": groups}
    try:
        said = msgspec.json.decode(client.post(REVIEWS_OF_OTHERS if account else REVIEWS, {"spec": spec}))
    except Refused as error:
        logger.info("access review refused: %s", error.detail)
        return False
    return bool(said.get("status", {}).get("allowed"))
