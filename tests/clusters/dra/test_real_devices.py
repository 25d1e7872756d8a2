"""Dynamic Resource Allocation on a real API server and kube-scheduler."""

import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.utils import timezone

from apps.clusters.core import quantities
from apps.clusters.dra import requests, slices
from apps.clusters.dra.watching import DeviceWatch
from apps.clusters.kube.client import Client
from apps.clusters.models import Cluster, DeviceClaim
from apps.clusters.services import bindings, clusters
from apps.nodes.models import Node
from apps.quotas.principals import SYSTEM
from tests.cast import GIB, Cast, Machine, assert_books_agree, give, used
from tests.clusters.cluster_objects import add_namespace, add_node, pod, remove
from tests.clusters.control_plane import ControlPlane
from tests.clusters.dra import things
from tests.clusters.dra.things import API

pytestmark = [pytest.mark.control_plane, pytest.mark.serial, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """Start a control plane whose scheduler allocates devices by itself."""
    config = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}
    with ControlPlane(tmp_path_factory.mktemp("kube"), scheduler_config=config) as it:
        yield it


class Site:
    """A node with GPUs in a cluster of its own name, and a namespace that acme pays for."""

    def __init__(self, plane: ControlPlane, cast: Cast, *, gpus: int = 1) -> None:
        self.client: Client = plane.client()
        self.cast = cast
        self.name = f"t-{uuid.uuid4().hex[:8]}"
        self.machine = Machine(self.name, cast.pool, gpus=gpus)
        Node.objects.filter(pk=self.machine.node.pk).update(kubernetes_node=self.name, dra=True)
        add_node(self.client, self.name, gpus=gpus, units=96)
        add_namespace(self.client, self.name)
        self.cluster: Cluster = clusters.connect(
            principal=SYSTEM, name=self.name, pool=cast.pool, kubeconfig=plane.kubeconfig()
        )
        bindings.bind(principal=SYSTEM, cluster=self.cluster, tenant=cast.acme, namespace=self.name)
        self.watch = DeviceWatch(self.cluster)
        for reflector in self.watch._reflectors:  # its own thread would use another session of the database
            reflector.start()

    def until(self, happens: Callable[[], bool], seconds: float = 30) -> None:
        """Watch, and have the agent obey, until the condition holds."""
        limit = time.monotonic() + seconds
        while not happens():
            assert time.monotonic() < limit, (
                "it does not happen",
                [
                    (
                        r.problem,
                        r.refusal,
                        r.told,
                        r.told_generation,
                        r.words,
                        r.claim and (r.claim.state, r.claim.generation, r.claim.core_request),
                    )
                    for r in DeviceClaim.objects.all()
                ],
            )
            Node.objects.filter(pk=self.machine.node.pk).update(last_seen_at=timezone.now())
            self.watch.step()
            self.machine.obey()

    def slice(self) -> dict[str, Any]:
        return self.client.find(f"{slices.PATH}/{slices.name_slice(self.name)}") or {}

    def left(self) -> tuple[int, int]:
        """Return what is published of the first GPU: percent and MiB."""
        found = self.slice().get("spec", {}).get("devices", [{}])[0].get("capacity", {})
        core, memory = (found.get(name, {}).get("value", "0") for name in ("core", "memory"))
        return quantities.value(core), quantities.value(memory) // requests.MIB

    def make(self, thing: dict[str, Any]) -> None:
        kind = {"ResourceClaim": f"{API}/namespaces/{self.name}/resourceclaims"}.get(thing.get("kind", ""))
        self.client.post(kind or f"/api/v1/namespaces/{self.name}/pods", thing)

    def claim(self, name: str) -> dict[str, Any]:
        return self.client.get(f"{API}/namespaces/{self.name}/resourceclaims/{name}")

    def condition(self, name: str) -> tuple[str, str, dict[str, Any]]:
        """Return status and reason of our condition, and the size in force."""
        devices = self.claim(name).get("status", {}).get("devices") or [{}]
        found = (devices[0].get("conditions") or [{}])[0]
        return found.get("status", ""), found.get("reason", ""), devices[0].get("data", {})

    def close(self) -> None:
        self.watch.stop()
        self.client.delete(f"/api/v1/nodes/{self.name}")


@pytest.fixture
def site(plane: ControlPlane, cast: Cast) -> Iterator[Site]:
    made = Site(plane, cast)
    yield made
    made.close()


def test_a_resource_claim_is_allocated_charged_resized_and_ends(site: Site, cast: Cast) -> None:
    give(cast.acme, core_percent=200, memory_mib=100 * GIB)
    site.until(lambda: site.left() == (100, 24 * GIB))
    site.make(things.claim("train", site.name))
    site.until(lambda: used(cast.acme)["core_percent"] == 30)
    assert DeviceClaim.objects.get().claim.state == "allocating"  # type: ignore[union-attr]
    site.make(things.pod("p", site.name, claim="train"))
    site.until(lambda: site.condition("train")[0] == "True")
    claim = DeviceClaim.objects.get().claim
    assert claim is not None
    assert (claim.state, claim.core_request, claim.memory_mib) == ("active", 30, 2 * GIB)
    assert pod(site.client, site.name, "p")["spec"]["nodeName"] == site.name
    # kube-scheduler counts the 30 percent itself.
    assert site.left() == (100, 24 * GIB)
    path = f"{API}/namespaces/{site.name}/resourceclaims/train"
    site.client.patch(path, {"metadata": {"annotations": {requests.CORE_KEY: "60", requests.MEMORY_KEY: "4Gi"}}})
    site.until(lambda: site.condition("train")[2].get("core") == 60)
    assert site.condition("train")[:2] == ("True", "InForce")
    # It counts 30 still, so 70 are left to be allocated in all.
    site.until(lambda: site.left() == (70, 22 * GIB))
    site.client.patch(path, {"metadata": {"annotations": {requests.CORE_KEY: "150"}}})
    site.until(lambda: site.condition("train")[1] == "Refused")
    site.client.patch(path, {"metadata": {"annotations": {requests.CORE_KEY: "10"}}})
    site.until(lambda: site.condition("train")[2].get("core") == 10)
    site.until(lambda: site.left() == (120, 22 * GIB))
    remove(site.client, site.name, "p")
    # Nobody uses it: Kubernetes takes the allocation away, and the ledger keeps the charge.
    site.until(lambda: not site.claim("train").get("status", {}).get("allocation"))
    site.until(lambda: DeviceClaim.objects.get().claim.state == "allocating")  # type: ignore[union-attr]
    assert used(cast.acme)["core_percent"] == 30
    site.client.delete(path)
    site.until(lambda: used(cast.acme)["core_percent"] == 0)
    site.until(lambda: site.left() == (100, 24 * GIB))
    assert_books_agree()
