"""From a pod to its limits page: webhooks, extender, binding, the ledger, the kubelet's device plugin, the page.

Our parts are all real: the webhooks' listener (TLS), the extender's listener, the watch, the ledger, the agent with its
gRPC sockets, the page in memory. The kubelet is always simulated; API server and scheduler are simulated, or real ones
if there is a control plane.
"""

import base64
import json
import ssl
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest
import yaml
from django.utils import timezone

from apps.clusters.kube.client import Client
from apps.clusters.models import Cluster, PodClaim
from apps.clusters.services import bindings, clusters
from apps.clusters.watches import Watches
from apps.clusters.watching import Watched
from apps.nodes.models import Node
from apps.nodes.services import nodes
from apps.quotas.principals import SYSTEM
from apps.scheduling.gateway import Gateway
from apps.scheduling.models import Claim
from apps.scheduling.services.claims.desired import desired_state
from tests.agent.kubelet import Container, claim_of
from tests.cast import Cast, assert_books_agree, give_plenty, used
from tests.clusters import control_plane as planes
from tests.clusters.admission.asking import apply_patch, review
from tests.clusters.admission.serving import serve
from tests.clusters.admission.test_real_webhooks import Webhooks
from tests.clusters.agent_side import AgentSide
from tests.clusters.answering import namespace
from tests.clusters.cluster_objects import add_namespace, add_node
from tests.clusters.extenders import Listening
from tests.clusters.played import Played
from tests.processes import eventually

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.serial, pytest.mark.timeout(300)]
# The machine's name for the kubelet of these tests.
NODE = "10.0.200.4"
CORE, MEMORY = "tencent.com/vcuda-core", "tencent.com/vcuda-memory"
Json = dict[str, Any]


class Kubernetes(Protocol):
    """The creator and binder of pods."""

    kubeconfig: str

    def run(self, pod: Json) -> Json: ...

    def remove(self, name: str) -> None: ...


class ByHand:
    """A stand-in that calls the webhooks and the extender as an API server and kube-scheduler do, in their order."""

    def __init__(self, played: Played, door: str, authority: Path, extender: Listening) -> None:
        self._played, self._door, self._extender = played, door, extender
        self._trusted = ssl.create_default_context(cafile=str(authority))
        self.kubeconfig = played.kubeconfig()

    def run(self, pod: Json) -> Json:
        thing = {**pod, "metadata": {**pod["metadata"], "namespace": "ml", "uid": f"uid-{pod['metadata']['name']}"}}
        said = self._asked(f"{self._door}/admission/mutate", review(thing))["response"]
        thing = apply_patch(thing, json.loads(base64.b64decode(said["patch"])))
        said = self._asked(f"{self._door}/admission/validate", review(thing))["response"]
        assert said["allowed"], said
        self._played.put("pods", {**thing, "status": {"phase": "Pending"}})
        question = json.dumps({"Pod": thing, "NodeNames": [NODE]}).encode()
        said = self._asked(f"{self._extender.url}/scheduler/predicates", question)
        assert (said["NodeNames"], said["Error"]) == ([NODE], ""), said
        meta = thing["metadata"]
        binding = {"PodName": meta["name"], "PodNamespace": "ml", "PodUID": meta["uid"], "Node": NODE}
        assert self._asked(f"{self._extender.url}/scheduler/bind", json.dumps(binding).encode()) == {"Error": ""}
        return self._played.objects["pods"]["ml", meta["name"]]

    def remove(self, name: str) -> None:
        self._played.put("pods", self._played.objects["pods"]["ml", name], "DELETED")

    def _asked(self, url: str, body: bytes) -> Any:
        context = self._trusted if url.startswith("https") else None
        with urllib.request.urlopen(url, data=body, context=context, timeout=30) as answer:  # noqa: S310 - loopback
            return json.loads(answer.read())


class ByKubernetes:
    """A real control plane whose API server calls our webhooks, and whose scheduler our extender."""

    def __init__(self, plane: planes.ControlPlane) -> None:
        self.kubeconfig, self._client = plane.kubeconfig(), plane.client()

    def run(self, pod: Json) -> Json:
        self._client.post("/api/v1/namespaces/ml/pods", pod)
        path = f"/api/v1/namespaces/ml/pods/{pod['metadata']['name']}"
        assert eventually(lambda: "nodeName" in self._client.get(path)["spec"], seconds=60), self._client.get(path)
        return self._client.get(path)

    def remove(self, name: str) -> None:
        self._client.delete(f"/api/v1/namespaces/ml/pods/{name}?gracePeriodSeconds=0")


@pytest.fixture
def by_hand(tmp_path: Path, settings: Any) -> Iterator[Kubernetes]:
    settings.ADMISSION_DEFAULT_MEMORY_MIB = 1024
    amounts = {CORE: "400", MEMORY: "384"}
    with Played(tmp_path / "kube") as played, Listening() as extender, serve(played.directory) as door:
        played.put("namespaces", namespace("ml"))
        played.put("nodes", {"metadata": {"name": NODE}, "status": {"capacity": amounts}})
        made = ByHand(played, door, played.directory / "ca.crt", extender)
        extender.begin("kube", Client(yaml.safe_load(made.kubeconfig)))
        yield made


@pytest.fixture
def by_kubernetes(request: pytest.FixtureRequest, tmp_path: Path, settings: Any) -> Iterator[Kubernetes]:
    plane: planes.ControlPlane = request.getfixturevalue("control_plane")
    settings.ADMISSION_DEFAULT_MEMORY_MIB = 1024
    client = plane.client()
    add_node(client, NODE, gpus=4, units=96)
    add_namespace(client, "ml")
    webhooks = Webhooks(plane, tmp_path / "tls")
    webhooks.certificates(url="https://127.0.0.1:1")
    with serve(webhooks.directory) as url:
        webhooks.configure(url)
        yield ByKubernetes(plane)
        webhooks.forget()


@pytest.fixture(params=["by_hand", pytest.param("by_kubernetes", marks=pytest.mark.control_plane)])
def kubernetes(request: pytest.FixtureRequest) -> Kubernetes:
    made: Kubernetes = request.getfixturevalue(request.param)
    return made


@pytest.fixture
def machine(real_cast: Cast, tmp_path: Path) -> Iterator[AgentSide]:
    """Enroll gpu1; its GPUs are those that its agent found."""
    give_plenty(real_cast.acme)
    node, _ = nodes.create_node(principal=SYSTEM, name="gpu1", pool=real_cast.pool)
    (tmp_path / "node").mkdir()
    with AgentSide(tmp_path / "node") as side:
        nodes.take_hello(node=node, hello=side.hello)
        yield side


@pytest.fixture
def cluster(real_cast: Cast, kubernetes: Kubernetes) -> Cluster:
    made = clusters.connect(principal=SYSTEM, name="kube", pool=real_cast.pool, kubeconfig=kubernetes.kubeconfig)
    bindings.bind(principal=SYSTEM, cluster=made, namespace="ml", tenant=real_cast.acme)
    return made


def watch_until(watches: Watches, happens: Any) -> None:
    """Run the watch until the condition holds; meanwhile the node's agent sends heartbeats."""

    def step() -> bool:
        Node.objects.update(last_seen_at=timezone.now())
        watches.refresh()
        return bool(happens())

    assert eventually(step, seconds=60), list(PodClaim.objects.values())


def obey(machine: AgentSide) -> None:
    """Send the desired state to the agent, and its observation to the server."""
    node = Node.objects.get(name="gpu1")
    Gateway().observed(node, machine.tell(desired_state(node)))


def test_a_pod_is_filled_placed_bound_charged_and_held_to_its_limits(
    real_cast: Cast, kubernetes: Kubernetes, machine: AgentSide, cluster: Cluster
) -> None:
    asked = {"name": "cuda", "image": "cuda:12", "resources": {"limits": {CORE: "30"}, "requests": {CORE: "30"}}}
    pod = kubernetes.run({"kind": "Pod", "metadata": {"name": "train"}, "spec": {"containers": [asked]}})
    # The webhook has filled in the memory, the extender has chosen a GPU, and the pod is bound.
    assert pod["spec"]["containers"][0]["resources"]["limits"][MEMORY] == "4"
    annotations, gpu = (
        pod["metadata"]["annotations"],
        int(pod["metadata"]["annotations"]["tencent.com/predicate-gpu-idx-0"]),
    )
    assert (pod["spec"]["nodeName"], annotations["tencent.com/predicate-node"]) == (NODE, NODE)

    watches = Watches(Watched)
    try:
        watch_until(watches, lambda: PodClaim.objects.filter(pod="train", claim__isnull=False).exists())
        claim = Claim.objects.get(container__pod="train")
        assert (claim.tenant, claim.core_request, claim.memory_mib) == (real_cast.acme, 30, 1024)
        assert used(real_cast.acme)["core_percent"] == 30
        obey(machine)
        claim.refresh_from_db()
        assert claim.state == "active"

        edits = machine.run(Container("train", core=30, blocks=4, namespace="ml"))
        assert claim_of(edits) == str(claim.uid)
        [wanted] = desired_state(Node.objects.get(name="gpu1")).assignments
        page = machine.stage.slot(wanted)
        assert page is not None
        assert (page.core_request, page.core_limit, page.memory_bytes) == (30, 30, 1 << 30)
        assert f"NVIDIA_VISIBLE_DEVICES={machine.stage.gpus[gpu]}" in edits.env

        kubernetes.remove("train")
        watch_until(watches, lambda: Claim.objects.get().state == "releasing")
        obey(machine)
    finally:
        watches.stop()
    assert Claim.objects.get().state == "released"
    assert machine.stage.slot(wanted) is None
    assert used(real_cast.acme)["core_percent"] == 0
    assert_books_agree()
