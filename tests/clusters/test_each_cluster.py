"""Each cluster has a thread of its own: one that hangs, or whose thread fails, delays no other."""

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from apps.clusters.kube.objects import Metadata, Namespace
from apps.clusters.kube.reflector import Observation
from apps.clusters.models import PodClaim
from apps.clusters.services import bindings, clusters
from apps.clusters.watches import Watches
from apps.clusters.watching import Watched
from apps.quotas.principals import SYSTEM
from tests.cast import Cast, Machine, give_plenty
from tests.clusters import paper
from tests.clusters.kubeconfigs import kubeconfig
from tests.clusters.test_holding import running
from tests.processes import eventually

pytestmark = pytest.mark.serial


@pytest.fixture
def silent() -> Iterator[str]:
    """Start a server that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"https://127.0.0.1:{listening.getsockname()[1]}"


@pytest.fixture
def watches(real_cast: Cast, silent: str) -> Iterator[Watches]:
    """Return watches of a cluster that hangs and of one that refuses at once."""
    Machine("gpu1", real_cast.pool)
    give_plenty(real_cast.acme)
    for name, server in (("hangs", silent), ("works", "https://127.0.0.1:1")):
        made = clusters.connect(
            principal=SYSTEM, name=name, pool=real_cast.pool, kubeconfig=kubeconfig(server=server), sync_quotas=True
        )
        bindings.bind(principal=SYSTEM, cluster=made, namespace="ml", tenant=real_cast.acme)
    watches = Watches(Watched)
    yield watches
    watches.stop()


def hear(watches: Watches, name: str) -> None:
    """Pass an event as its reflectors do."""
    watch = watches.by_name[name]
    assert isinstance(watch, Watched)
    watch.hear(Observation("namespaces", (Namespace(Metadata(name="ml")),), whole=True))
    pod = running("train", paper.container(30, 10))
    pod["metadata"]["uid"] = f"uid-of-{name}"
    watch.hear(Observation("pods", (pod,), whole=True))


def test_a_cluster_that_hangs_holds_up_no_other(watches: Watches) -> None:
    watches.refresh()
    # Events of this cluster cause requests that are never answered.
    hear(watches, "hangs")
    time.sleep(0.5)
    begun = time.monotonic()
    hear(watches, "works")
    assert eventually(lambda: PodClaim.objects.filter(cluster__name="works", claim__isnull=False).exists(), seconds=8)
    assert time.monotonic() - begun < 9
    assert {thread.name for thread in threading.enumerate()} >= {"cluster-hangs", "cluster-works"}


def test_a_thread_that_fails_is_begun_anew(watches: Watches, monkeypatch: pytest.MonkeyPatch) -> None:
    watches.refresh()
    failing, other = watches.by_name["works"], watches.by_name["hangs"]
    monkeypatch.setattr(failing, "step", lambda: 1 / 0)
    assert eventually(lambda: failing.has_ended, seconds=20)
    watches.refresh()
    assert watches.by_name["works"] is not failing
    assert watches.by_name["hangs"] is other
