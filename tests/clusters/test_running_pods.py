"""Running pods on a real API server: claims follow their annotations, pods are notified; manifests and permissions."""

import json
from typing import Any

import pytest

from apps.clusters.kube.client import Client
from apps.clusters.kube.reflector import PODS, Observation, Reflector
from apps.clusters.models import Cluster, PodClaim
from apps.clusters.services import clusters, resizing
from apps.quotas.principals import SYSTEM
from tests.cast import Cast, Machine, give_plenty, placed
from tests.clusters.cluster_objects import CORE, MEMORY, add_namespace, pod
from tests.clusters.control_plane import ControlPlane
from tests.processes import eventually

pytestmark = [pytest.mark.control_plane, pytest.mark.serial, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def client(control_plane: ControlPlane) -> Client:
    found = control_plane.client()
    add_namespace(found, "vision")
    return found


class Watching:
    """The watch of a cluster's pods; its events are handled in the test's own thread, which has the database."""

    def __init__(self, client: Client, cluster: Cluster) -> None:
        self.client, self.cluster = client, cluster
        self.news: list[Any] = []
        self.reflector = Reflector(client, PODS, see=self._see, fail=lambda kind, text: None)
        self.reflector.start()

    def _see(self, seen: Observation) -> None:
        self.news += [one for one in seen.objects if not seen.gone]

    def follow(self) -> None:
        """Run the pods' watch and its timer once."""
        while self.news:
            one = self.news.pop(0).metadata
            resizing.follow(cluster=self.cluster, pod_uid=one.uid, annotations=one.annotations or {})
        resizing.tell(cluster=self.cluster, api=self.client)

    def status(self, name: str) -> dict[str, Any]:
        self.follow()
        annotations = pod(self.client, "vision", name)["metadata"].get("annotations", {})
        told: dict[str, Any] = json.loads(annotations.get(resizing.STATUS, "{}"))
        main: dict[str, Any] = told.get("main", {})
        return main

    def events(self, name: str) -> list[tuple[str, str]]:
        found = self.client.get("/api/v1/namespaces/vision/events", fieldSelector=f"involvedObject.name={name}")
        return [
            (one["reason"], one["message"]) for one in found["items"] if one["source"].get("component") == "gpucloud"
        ]


def annotate(client: Client, name: str, **values: str) -> None:
    annotations = {f"gpucloud.io/vcuda-{key}": value for key, value in values.items()}
    client.patch(f"/api/v1/namespaces/vision/pods/{name}", {"metadata": {"annotations": annotations}})


def test_a_running_pod_is_resized_by_annotation_and_by_the_api_and_hears_of_both(client: Client, cast: Cast) -> None:
    give_plenty(cast.acme)
    machine = Machine("gpu1", cast.pool)
    cluster = clusters.connect(principal=SYSTEM, name="kube", pool=cast.pool, in_cluster=True)
    limits = {CORE: "25", MEMORY: "16"}
    spec = {"containers": [{"name": "main", "image": "cuda", "resources": {"limits": limits}}], "nodeName": "gpu1"}
    client.post("/api/v1/namespaces/vision/pods", {"metadata": {"name": "web-0"}, "spec": spec})
    uid = pod(client, "vision", "web-0")["metadata"]["uid"]
    claim, _ = placed(cast, machine, core_request=25, core_limit=25, memory_mib=4096)
    PodClaim.objects.create(
        cluster=cluster, namespace="vision", pod="web-0", pod_uid=uid, container="main", container_index=0,
        node_name="gpu1", node=machine.node, core=25, memory_mib=4096, gpu_indexes=[0], claim=claim,
    )  # fmt: skip
    watching = Watching(client, cluster)
    annotate(client, "web-0", core="40", memory="20")
    assert eventually(lambda: watching.status("web-0").get("state") == "pending", seconds=30)
    machine.obey()
    asked = {"core": 40, "coreLimit": 40, "memory": 20, "generation": 2}
    assert watching.status("web-0") == {"state": "in-force", **asked}
    assert watching.events("web-0") == [("Resized", "Container main: core 40 to 40, memory 20 x 256 MiB")]
    # More than the GPU has: refused with a message, and nothing is changed.
    annotate(client, "web-0", memory="9999")
    assert eventually(lambda: watching.status("web-0").get("state") == "refused", seconds=30)
    assert "MiB" in watching.status("web-0")["reason"]
    assert [reason for reason, _ in sorted(watching.events("web-0"))] == ["ResizeRefused", "Resized"]
    # Changed by the API: the pod is notified, and its annotations still have the old value.
    claim.refresh_from_db()
    assert cast.max.patch(f"claims/{claim.uid}/", {"core_limit": 90}).status == 200
    machine.obey()
    assert watching.status("web-0") == {"state": "in-force", **asked, "coreLimit": 90, "generation": 3}
    # Another pod of its name gets no message.
    client.delete("/api/v1/namespaces/vision/pods/web-0?gracePeriodSeconds=0")
    client.post("/api/v1/namespaces/vision/pods", {"metadata": {"name": "web-0"}, "spec": spec})
    assert cast.max.patch(f"claims/{claim.uid}/", {"core_limit": 80}).status == 200
    machine.obey()
    assert watching.status("web-0") == {}
    watching.reflector.stop()
