"""`manage.py clusters` as real processes, against a simulated API server that requires certificates, and a real one."""

import base64
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from apps.clusters.models import Cluster, PodClaim
from apps.clusters.services import bindings, clusters, connections, watchers
from apps.nodes.models import Node
from apps.quotas.principals import SYSTEM
from tests.cast import Cast, Machine, give_plenty, used
from tests.clusters.answering import namespace, running
from tests.clusters.control_plane import ControlPlane
from tests.clusters.kubeconfigs import kubeconfig
from tests.clusters.played import Played
from tests.clusters.real import Namespace
from tests.processes import eventually
from tests.scheduling.programs import program, sessions

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(180)]
COMMAND = ("manage.py", "clusters")
# Two cores, shared with other tests.
SECONDS = 40.0


@pytest.fixture
def played(tmp_path: Path) -> Iterator[Played]:
    with Played(tmp_path / "kube") as it:
        it.put("namespaces", namespace("ml"))
        yield it


@pytest.fixture
def cluster(real_cast: Cast, played: Played) -> Cluster:
    """Create a machine of four GPUs, and a namespace of acme's."""
    give_plenty(real_cast.acme)
    Machine("gpu1", real_cast.pool)
    made = clusters.connect(principal=SYSTEM, name="kube", pool=real_cast.pool, kubeconfig=played.kubeconfig())
    bindings.bind(principal=SYSTEM, cluster=made, namespace="ml", tenant=real_cast.acme)
    return made


def holds(pod: str) -> bool:
    """Return True if it holds its share; meanwhile its node's agent sends heartbeats."""
    Node.objects.update(last_seen_at=timezone.now())
    return PodClaim.objects.live().filter(pod=pod, claim__isnull=False).exists()


def test_of_two_that_watch_one_leads_and_the_other_takes_over_when_it_is_killed(
    real_cast: Cast, played: Played, cluster: Cluster
) -> None:
    first_pod = played.put("pods", running("first"))
    with program(*COMMAND) as first:
        assert eventually(watchers.is_led, seconds=SECONDS)
        assert eventually(lambda: holds("first"), seconds=SECONDS)
        with program(*COMMAND, PGAPPNAME="second") as second:
            # It asks for the lock once a second, in a session of that moment.
            assert eventually(lambda: sessions("second") > 0, seconds=SECONDS)
            lists = played.requests.count(("GET", "/api/v1/pods"))
            first.send_signal(signal.SIGKILL)
            first.wait()
            # While nothing watched, one pod ended and one came.
            played.put("pods", first_pod, "DELETED")
            played.put("pods", running("second", gpu=1))
            assert eventually(lambda: holds("second"), seconds=SECONDS)
            assert eventually(lambda: not holds("first"), seconds=SECONDS)
            assert watchers.is_led()
            assert second.poll() is None
            assert played.requests.count(("GET", "/api/v1/pods")) > lists
    assert PodClaim.objects.filter(pod="first").count() == 1
    cluster.refresh_from_db()
    assert (cluster.state, cluster.kubernetes_version) == ("connected", "v1.36.2")
    assert used(real_cast.acme)["core_percent"] >= 30


@pytest.mark.control_plane
@pytest.mark.serial
def test_on_a_real_control_plane_too_the_other_takes_over(real_cast: Cast, real_plane: ControlPlane) -> None:
    give_plenty(real_cast.acme)
    there = Namespace(real_plane, real_cast)
    machine = Machine("gpu1", real_cast.pool)
    there.make("pods", bound_pod("first", gpu=0))
    with program(*COMMAND) as first:
        assert eventually(lambda: holds("first"), seconds=SECONDS)
        alone = sessions()
        with program(*COMMAND):
            assert eventually(lambda: sessions() > alone, seconds=SECONDS)
            first.send_signal(signal.SIGKILL)
            first.wait()
            there.client.delete(there.path("pods", "first") + "?gracePeriodSeconds=0")
            there.make("pods", bound_pod("second", gpu=1))
            assert eventually(lambda: holds("second"), seconds=SECONDS)
            assert eventually(lambda: not holds("first"), seconds=SECONDS)
            machine.obey()
            assert used(real_cast.acme)["core_percent"] == 30
    there.client.delete(f"/api/v1/namespaces/{there.name}")


def bound_pod(name: str, *, gpu: int) -> dict[str, Any]:
    """Return a pod that a scheduler has bound to gpu1."""
    pod = running(name, gpu=gpu)
    container = pod["spec"]["containers"][0]
    return {**pod, "spec": {"nodeName": "gpu1", "containers": [{**container, "image": "cuda:12"}]}}


def test_who_has_no_certificate_of_the_clusters_authority_is_not_let_in(
    real_cast: Cast, played: Played, cluster: Cluster
) -> None:
    tried = connections.attempt(principal=SYSTEM, cluster=cluster)
    assert (tried.reached, tried.missing, tried.kubernetes_version) == (True, [], "v1.36.2")
    trusted = base64.b64encode((played.directory / "ca.crt").read_bytes()).decode()
    by_token = kubeconfig(server=cluster.server, cluster={"certificate-authority-data": trusted})
    clusters.change(principal=SYSTEM, cluster=cluster, kubeconfig=by_token)
    cluster.refresh_from_db()
    refused = connections.attempt(principal=SYSTEM, cluster=cluster)
    assert (refused.reached, "does not answer" in refused.reason) == (False, True)
