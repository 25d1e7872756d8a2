"""A burst of bound pods on a real API server: all are in the ledger, each once, and leave it."""

import threading
import time
from collections.abc import Callable

import pytest

from apps.clusters.kube.client import Client
from apps.clusters.models import PodClaim
from apps.clusters.services import bindings, clusters
from apps.clusters.watches import Watches
from apps.clusters.watching import Watched
from apps.quotas.principals import SYSTEM
from tests.cast import Cast, Machine, assert_books_agree, give_plenty, used
from tests.clusters.cluster_objects import CHOSEN, CORE, INDEX, MEMORY, add_namespace, add_node, remove
from tests.clusters.control_plane import ControlPlane
from tests.clusters.test_watches import until

pytestmark = [pytest.mark.control_plane, pytest.mark.serial, pytest.mark.timeout(300)]
PODS, GPUS, THREADS = 200, 8, 4


def create(client: Client, number: int) -> None:
    """Create a pod as the extender and kube-scheduler leave it."""
    limits = {CORE: "2", MEMORY: "1"}
    meta = {"name": f"p{number}", "annotations": {INDEX: str(number % GPUS), CHOSEN: "burst-1"}}
    container = {"name": "main", "image": "cuda", "resources": {"limits": limits}}
    client.post(
        "/api/v1/namespaces/burst/pods", {"metadata": meta, "spec": {"nodeName": "burst-1", "containers": [container]}}
    )


def create_every(client: Client, first: int) -> None:
    """Create each fourth pod from this one on."""
    for number in range(first, PODS, THREADS):
        create(client, number)


def test_a_burst_is_in_the_ledger_pod_by_pod(
    real_cast: Cast, real_plane: ControlPlane, record_property: Callable[[str, object], None]
) -> None:
    give_plenty(real_cast.acme)
    Machine("burst-1", real_cast.pool, gpus=GPUS)
    client = real_plane.client()
    add_node(client, "burst-1", gpus=GPUS, units=96)
    add_namespace(client, "burst")
    kubeconfig = real_plane.kubeconfig()
    cluster = clusters.connect(principal=SYSTEM, name="burst", pool=real_cast.pool, kubeconfig=kubeconfig)
    bindings.bind(principal=SYSTEM, cluster=cluster, namespace="burst", tenant=real_cast.acme)
    # Other tests' pods may still be there, without a tenant.
    watches, mine = Watches(Watched), PodClaim.objects.live().filter(namespace="burst")
    live = mine.filter(claim__isnull=False)
    try:
        create(client, 0)
        until(watches, lambda: live.count() == 1)
        begun = time.monotonic()
        hands = [threading.Thread(target=create_every, args=(client, first)) for first in range(1, THREADS + 1)]
        for hand in hands:
            hand.start()
        for hand in hands:
            hand.join()
        created = time.monotonic() - begun
        until(watches, lambda: live.count() == PODS)
        record_property("created_s", created)
        record_property("recorded_s", time.monotonic() - begun)
        assert used(real_cast.acme)["core_percent"] == 2 * PODS
        assert_books_agree()
        remove(client, "burst", *(f"p{number}" for number in range(PODS)))
        until(watches, lambda: not mine.exists())
        assert_books_agree()
    finally:
        watches.stop()
        client.delete("/api/v1/nodes/burst-1")
