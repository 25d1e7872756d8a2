"""Enrolment of nodes through their cluster: the agent presents its pod's token, which the API server verifies.

The token is a projected one of the agents' service account: bound to the pod, for the audience `AUDIENCE` only, valid
for an hour. It has no permissions at the API server, so a compromised server gains nothing there. The node follows from
the pod that the API server knows under that name and uid, never from the agent's statements.
"""

import base64
import logging
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
from django.db import IntegrityError, connection, transaction

from apps.clusters.kube.client import Client, Refused
from apps.clusters.models import Cluster, JoinedNode
from apps.clusters.services.connections import client_of
from apps.nodes.models import Node
from apps.nodes.services import nodes
from apps.nodes.services.nodes import EnrolmentRefused
from apps.quotas.models.tenant import SLUG
from apps.quotas.principals import Principal
from gpucloud.errors import Busy

logger = logging.getLogger(__name__)

AUDIENCE = "gpucloud"
REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"
POD_NAME, POD_UID = "authentication.kubernetes.io/pod-name", "authentication.kubernetes.io/pod-uid"
NOT_OURS = "No cluster of that name admits this agent: see its `agent_account`, and the server's log."
# API servers may be slow, and this endpoint is public: so only a few threads of a process wait, and briefly.
ASKING = threading.BoundedSemaphore(2)
PATIENCE_SECONDS = 3.0


def join(*, cluster: str, token: str, key_digest: str, source_ip: str | None = None) -> Node:
    """Return the node of the token's pod, created if missing, with this key from now on.

    The same key may come again: the first answer may have been lost. Raises EnrolmentRefused, Busy, Unreachable.
    """
    row = Cluster.objects.select_related("pool").filter(name=cluster, enabled=True).exclude(agent_account="").first()
    if row is None or not _may_be_ours(row, token):
        raise EnrolmentRefused(NOT_OURS)
    try:
        with _asking():
            client = client_of(row)
            client.patience_seconds = PATIENCE_SECONDS
            name = _node_of(row, client, token)
    except Refused as error:
        logger.warning("an agent of cluster %s was refused: %s", row.name, error.detail)
        raise EnrolmentRefused(NOT_OURS) from error
    return _take(row, name, key_digest, Principal(name=f"cluster:{row.name}", is_operator=True, source_ip=source_ip))


def vouched_name(node: Node) -> str:
    """Return the name in Kubernetes for which a cluster vouched when the node joined; empty if none did."""
    return JoinedNode.objects.filter(node=node).values_list("kubernetes_node", flat=True).first() or ""


def subject(cluster: Cluster) -> str:
    """Return Kubernetes' name of the agents' service account."""
    return "system:serviceaccount:" + cluster.agent_account.replace("/", ":")


def _may_be_ours(cluster: Cluster, token: str) -> bool:
    """Return True if the token's own claims fit; they are no proof, but spare the API server hopeless reviews."""
    try:
        body = token.split(".")[1]
        said = msgspec.json.decode(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)), type=dict[str, Any])
        audiences = said.get("aud")
        named = audiences == AUDIENCE or (isinstance(audiences, list) and AUDIENCE in audiences)
        return named and said.get("sub") == subject(cluster) and float(said.get("exp", 0)) > time.time()
    except (
        ArithmeticError,
        IndexError,
        RecursionError,
        TypeError,
        ValueError,
    ):  # includes the errors of base64 and msgspec
        return False


@contextmanager
def _asking() -> Iterator[None]:
    """Take one of the few slots for API server requests, without a database connection meanwhile. Raises Busy."""
    if not ASKING.acquire(blocking=False):
        raise Busy("Other agents are joining at this moment: try again.", retry_after_seconds=2)
    try:
        # Return the connection to the pool for other requests; later queries take another.
        if not connection.in_atomic_block:
            connection.close()
        yield
    finally:
        ASKING.release()


def _node_of(cluster: Cluster, client: Client, token: str) -> str:
    """Return the cluster's name of the node. Raises EnrolmentRefused, Refused, Unreachable."""
    said = msgspec.json.decode(client.post(REVIEWS, {"spec": {"token": token, "audiences": [AUDIENCE]}}))
    status = said.get("status") or {}
    user = status.get("user") or {}
    # An API server without audience support answers without them; then the token may be for another audience.
    if not status.get("authenticated") or AUDIENCE not in (status.get("audiences") or ()):
        raise EnrolmentRefused(
            f"The API server does not know this token: {status.get('error') or 'not authenticated'}."
        )
    extra = user.get("extra") or {}
    pod_name, pod_uid = (extra.get(key) or [""] for key in (POD_NAME, POD_UID))
    if user.get("username") != subject(cluster) or not pod_name[0] or not pod_uid[0]:
        raise EnrolmentRefused("The token is not one of a pod of the agents: project it into the pod.")
    namespace = cluster.agent_account.partition("/")[0]
    pod = client.get(f"/api/v1/namespaces/{namespace}/pods/{pod_name[0]}")
    if pod["metadata"]["uid"] != pod_uid[0] or not pod["spec"].get("nodeName"):
        raise EnrolmentRefused("The token's pod is another one by now, or on no node.")
    return str(pod["spec"]["nodeName"])


def _take(cluster: Cluster, name: str, key_digest: str, principal: Principal) -> Node:
    try:
        with transaction.atomic():
            joined = JoinedNode.objects.select_related("node").filter(cluster=cluster, kubernetes_node=name).first()
            node = joined.node if joined is not None else _make(cluster, name, principal)
            return nodes.adopt(
                principal=principal, node=node, new=joined is None, key_digest=key_digest, kubernetes_node=name
            )
    except IntegrityError as error:
        raise EnrolmentRefused(f"Node {name} was joining at this moment: try again.") from error


def _make(cluster: Cluster, name: str, principal: Principal) -> Node:
    """Create a node for the machine. Raises EnrolmentRefused."""
    ours = name.lower().replace(".", "-")
    if not re.fullmatch(SLUG, ours):
        raise EnrolmentRefused(f"{name} is too long for a name here: make the node, and give its agent a token.")
    if Node.objects.filter(name=ours).exists():
        raise EnrolmentRefused(
            f"There is a node {ours} that did not join by cluster {cluster.name}: give its agent a token of its own."
        )
    node, _ = nodes.create_node(principal=principal, name=ours, pool=cluster.pool)
    # Its enrolment token is never shown, so it is removed.
    node.change(enrolment_digest=None, enrolment_expires_at=None)
    JoinedNode.objects.create(cluster=cluster, kubernetes_node=name, node=node)
    return node
