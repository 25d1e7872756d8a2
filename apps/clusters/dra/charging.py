"""Webhook of ResourceClaims: the API server refuses what the ledger has no quota for, and the ledger charges the rest.

Charged before it exists: if the API server refuses it for another reason, the watch releases it (`ledger.find_unseen`).
"""

import logging
import math
import re
import time
from functools import partial

from asgiref.sync import sync_to_async
from django.db import InterfaceError, OperationalError, connection, transaction

from apps.clusters.admission import handler
from apps.clusters.admission.reviews import Review, Verdict
from apps.clusters.dra import ledger, requests
from apps.clusters.kube.client import Client
from apps.clusters.models import Cluster
from apps.clusters.services.clusters import kubeconfig_of
from gpucloud.errors import GpucloudError

logger = logging.getLogger(__name__)

# Followed by a cluster's name: an API server does not say which cluster it is. Without it, the first one.
PATH = "/admission/devices"
# An API server names its patience in the request (`?timeout=15s`), and begins to count before we have the request.
TIMEOUT = re.compile(rb"(?:^|&)timeout=(\d+)s(?:&|$)")
MARGIN = 0.9


async def application(scope: handler.Message, receive: handler.Receive, send: handler.Send) -> None:
    """Answer one admission review of a ResourceClaim or a template here; of everything else, the other webhooks do."""
    path = str(scope["path"]).rstrip("/")
    if path != PATH and not path.startswith(f"{PATH}/"):
        await handler.application(scope, receive, send)
        return
    end = time.monotonic() + _patience_seconds(scope.get("query_string", b""))
    charges = sync_to_async(partial(_charge_once, path[len(PATH) + 1 :], end), thread_sensitive=False)
    await handler.answer_review(scope, receive, send, charges)


def charge(review: Review, name: str, end: float = math.inf) -> Verdict:
    """Return the verdict on the object; a new ResourceClaim is charged to its namespace's tenant.

    `name` is the cluster's; empty: that of the first one. `end` is the moment at which the API server gives up, by
    `time.monotonic`: an object that it refuses is not charged, because its author creates another at once.
    """
    if time.monotonic() >= end:
        return _TOO_LATE
    if review.operation == "UPDATE":
        return _judge_resize(review)
    if review.operation != "CREATE" or not requests.asks(review.thing):
        return Verdict()
    try:
        asked = requests.read_request(review.thing)
        if review.kind != "ResourceClaim":
            return Verdict()
        requests.read_resize(requests.resize_words(review.thing))
        cluster = _find_cluster(name)
        if cluster is None:
            return Verdict(refusals=[f"gpucloud has no cluster {name}: connect it." if name else _NO_CLUSTER])
        namespace = review.namespace
        with transaction.atomic():
            ledger.charge(
                cluster=cluster, thing=review.thing, asked=asked, labels=lambda: _labels_of(cluster, namespace)
            )
            late = time.monotonic() >= end
            transaction.set_rollback(review.dry_run or late)
    except GpucloudError as error:
        return Verdict(refusals=[error.detail])
    return _TOO_LATE if late else Verdict()


_NO_CLUSTER = "gpucloud has no cluster: connect this one."
# Read by nobody: the API server says "context deadline exceeded".
_TOO_LATE = Verdict(refusals=["gpucloud has too many claims to charge at once: try again."])


def _patience_seconds(query: bytes) -> float:
    found = TIMEOUT.search(query)
    return float(found[1]) * MARGIN if found else math.inf


def _charge_once(name: str, end: float, review: Review) -> Verdict:
    """Charge with a database session of its own."""
    try:
        return charge(review, name, end)
    except (InterfaceError, OperationalError) as error:
        logger.warning("a ResourceClaim in %s is refused: %s", review.namespace, error)
        return Verdict(refusals=["gpucloud's database does not answer, so nothing can be charged: try again."])
    finally:
        connection.close()


def _judge_resize(review: Review) -> Verdict:
    """Refuse unreadable annotations; whether there is room is told in the status."""
    words = requests.resize_words(review.thing)
    if words == requests.resize_words(review.old):
        return Verdict()
    try:
        requests.read_resize(words)
    except GpucloudError as error:
        return Verdict(refusals=[error.detail])
    return Verdict()


def _find_cluster(name: str) -> Cluster | None:
    rows = Cluster.objects.filter(enabled=True).select_related("pool").order_by("pk")
    return rows.filter(name=name).first() if name else rows.first()


def _labels_of(cluster: Cluster, namespace: str) -> dict[str, str]:
    return Client(kubeconfig_of(cluster)).labels_of(namespace)
