"""Webhook of ResourceClaims: the API server refuses what the ledger has no quota for, and the ledger charges the rest.

Charged before it exists: if the API server refuses it for another reason, the watch releases it (`ledger.find_unseen`).
"""

import hmac
import logging
import math
import re
import time
from functools import cache, partial

from asgiref.sync import sync_to_async
from django.conf import settings
from django.db import InterfaceError, OperationalError, connection, transaction

from apps.clusters.admission import handler, manifests
from apps.clusters.admission.reviews import Review, Verdict
from apps.clusters.dra import ledger, requests
from apps.clusters.kube.client import Client
from apps.clusters.models import Cluster
from apps.clusters.services.clusters import kubeconfig_of
from gpucloud.errors import GpucloudError

logger = logging.getLogger(__name__)

# Followed by a cluster's name, as an API server does not say which cluster it is (without it, the first one), and by
# the key.
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
    name, keys = _parse_path(path)
    if not _is_caller_known([*keys, *_bearer_tokens(scope)]):
        await handler.answer_review(scope, receive, send, _refuse_stranger)
        return
    charges = sync_to_async(partial(_charge_once, name, end), thread_sensitive=False)
    await handler.answer_review(scope, receive, send, charges)


def _parse_path(path: str) -> tuple[str, list[str]]:
    """Return the cluster's name, empty without one, and the keys in the path."""
    parts = [part for part in path[len(PATH) :].split("/") if part]
    keys = [part.removeprefix(manifests.KEY) for part in parts if part.startswith(manifests.KEY)]
    return "/".join(part for part in parts if not part.startswith(manifests.KEY)), keys


def _bearer_tokens(scope: handler.Message) -> list[str]:
    """Return the token that an API server sends if its AdmissionConfiguration has one for this webhook."""
    values = [value.decode("latin-1") for name, value in scope.get("headers", ()) if name.lower() == b"authorization"]
    return [value[len(_BEARER) :].strip() for value in values if value.lower().startswith(_BEARER)]


def _is_caller_known(shown: list[str]) -> bool:
    """Return True if one of these is a key, or if there are no keys."""
    if not settings.ADMISSION_DEVICES_KEYS:
        _warn_of_strangers()
        return True
    pairs = [(one.encode(), key.encode()) for one in shown for key in settings.ADMISSION_DEVICES_KEYS]
    return any([hmac.compare_digest(one, key) for one, key in pairs])  # noqa: C419 - all are compared


@cache
def _warn_of_strangers() -> None:
    logger.warning("ADMISSION_DEVICES_KEYS is not set: whoever reaches this port can charge tenants (docs/dra.md).")


async def _refuse_stranger(review: Review) -> Verdict:
    logger.warning("a ResourceClaim in %s is refused: its caller has no key", review.namespace)
    return _STRANGER


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


_BEARER = "bearer "
_NO_KEY = (
    "gpucloud charges for API servers with its key only: apply the webhook configurations again, as "
    "`manage.py webhook_certificates --devices CLUSTER` or the chart makes them."
)
_STRANGER = Verdict(refusals=[_NO_KEY])
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
