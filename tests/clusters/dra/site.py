"""A node with GPUs in a real control plane, and the watch over its devices in the test's own thread."""

import time
import uuid
from collections.abc import Callable
from typing import Any

from django.utils import timezone

from apps.clusters.core import quantities
from apps.clusters.dra import requests, slices
from apps.clusters.dra.watching import DeviceWatch
from apps.clusters.kube.client import Client, Refused
from apps.clusters.models import Cluster, DeviceClaim
from apps.clusters.services import bindings, clusters
from apps.nodes.models import Node
from apps.quotas.principals import SYSTEM
from tests.cast import Cast, Machine
from tests.clusters.cluster_objects import add_namespace, add_node
from tests.clusters.control_plane import ControlPlane
from tests.clusters.dra.things import API


class Site:
    """A node with GPUs in a cluster of its own name, and a namespace that acme pays for."""

    # Set where there are webhooks.
    take_webhooks_away: Callable[[], None]

    def __init__(self, plane: ControlPlane, cast: Cast, *, gpus: int = 1, **facts: Any) -> None:
        self.client: Client = plane.client()
        self.cast = cast
        self.name = f"t-{uuid.uuid4().hex[:8]}"
        self.machine = Machine(self.name, cast.pool, gpus=gpus, **facts)
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

    def make(self, thing: dict[str, Any], **query: str) -> None:
        kind = str(thing.get("kind", "Pod")).lower()
        group = "/api/v1" if kind == "pod" else API
        words = "&".join(f"{name}={word}" for name, word in query.items())
        self.client.post(f"{group}/namespaces/{self.name}/{kind}s?{words}", thing)

    def refusal(self, thing: dict[str, Any], **query: str) -> str:
        """Return why the API server refuses the object; empty if it creates it."""
        try:
            self.make(thing, **query)
        except Refused as error:
            return error.message
        return ""

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
