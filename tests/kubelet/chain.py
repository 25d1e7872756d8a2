"""The whole chain on a real kubelet, and pods in it."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from apps.clusters.kube.client import Client, Refused
from tests.clusters.cluster_objects import CORE, MEMORY
from tests.clusters.control_plane import ControlPlane
from tests.kubelet import image
from tests.kubelet.agent import GPUS, SHAPE, Agent
from tests.kubelet.node import RealNode
from tests.kubelet.server_side import NAMESPACE, ServerSide
from tests.platform import until

NODE = "kube-1"
# A pod is placed, recorded, pushed to its node, and started within seconds on an idle machine.
PATIENCE_SECONDS = 90.0
BLOCK_MIB = 256
IDLE = ("sleep", "infinity")
REPLICA_SETS = f"/apis/apps/v1/namespaces/{NAMESPACE}/replicasets"
# In the machine's network.
POD = {"hostNetwork": True, "terminationGracePeriodSeconds": 1, "automountServiceAccountToken": False}
Json = dict[str, Any]


class Chain:
    """Control planes of both sides, a node with kubelet and containerd, and its agent."""

    def __init__(self, plane: ControlPlane, server: ServerSide, node: RealNode, agent: Agent) -> None:
        self.plane, self.server, self.node, self.agent = plane, server, node, agent
        self.client: Client = plane.client()

    def run(
        self, name: str, *command: str, core: int, memory_mib: int = 1024, restart: str = "Always", **annotations: str
    ) -> Json:
        """Create a pod of one container and wait until it runs."""
        self.create(name, *command, core=core, memory_mib=memory_mib, restart=restart, **annotations)
        return self.running(name)

    def create(
        self, name: str, *command: str, core: int, memory_mib: int = 1024, restart: str = "Always", **annotations: str
    ) -> None:
        """Create a pod of one container. Raises Refused."""
        limits = {CORE: str(core), MEMORY: str(memory_mib // BLOCK_MIB)}
        spec = {"containers": [container("main", *command, limits=limits)], "restartPolicy": restart}
        self.create_pod({"metadata": {"name": name, "annotations": annotations}, "spec": spec})

    def create_pod(self, pod: Json) -> None:
        """Create a pod in the machine's network. Raises Refused."""
        self.client.post(f"/api/v1/namespaces/{NAMESPACE}/pods", {**pod, "spec": {**POD, **pod["spec"]}})

    @contextmanager
    def replicas(self, name: str, pod: Json, number: int) -> Iterator[None]:
        """Keep this many pods of one spec; remove them at the end."""
        labels = {"app": name}
        spec = {
            "replicas": number, "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {**POD, **pod}},
        }  # fmt: skip
        self.client.post(REPLICA_SETS, {"metadata": {"name": name}, "spec": spec})
        try:
            yield
        finally:
            self.client.delete(f"{REPLICA_SETS}/{name}")
            mine = [one["metadata"]["name"] for one in self.pods() if one["metadata"].get("labels") == labels]
            self.delete(*mine)

    def pod(self, name: str) -> Json:
        return self.client.get(f"/api/v1/namespaces/{NAMESPACE}/pods/{name}")

    def running(self, name: str, *, seconds: float = PATIENCE_SECONDS) -> Json:
        """Return the pod once all of its containers run."""
        self.wait(lambda: runs(self.pod(name)), what=f"pod {name} to run", pod=name, seconds=seconds)
        return self.pod(name)

    def wait(
        self,
        holds: Callable[[], Any],
        *,
        what: str,
        pod: str | None = None,
        seconds: float = PATIENCE_SECONDS,
    ) -> Any:
        """Return the call's first true value. Raises AssertionError with what each part says."""
        try:
            return until(holds, seconds=seconds, what=what)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.describe(pod)}") from None

    def describe(self, pod: str | None = None) -> str:
        """Return in words what pod, ledger, kubelet and agent say."""
        parts = {
            "events": "\n".join(self.events(pod)),
            "ledger": json.dumps(self.server.pods(), indent=1)[:2000],
            "node": json.dumps(self.node.capacity()),
            "kubelet": self.node.log_tail("kubelet")[-2500:],
            "agent": self.agent.log_tail()[-2500:],
        }
        if pod is not None:
            found = self.pod(pod)
            parts["pod"] = json.dumps({"status": found["status"], "annotations": found["metadata"].get("annotations")})
        return "\n".join(f"--- {name}\n{text}" for name, text in parts.items())

    def events(self, pod: str | None) -> list[str]:
        """Return the events of a pod, or of all, the newest last."""
        found = [json.loads(bytes(raw)) for raw in self.client.list(f"/api/v1/namespaces/{NAMESPACE}/events")[0]]
        mine = [one for one in found if pod in (None, one["involvedObject"].get("name"))]
        mine.sort(key=lambda one: one["metadata"]["creationTimestamp"])
        return [f"{one.get('reason')}: {one.get('message')}"[:400] for one in mine[-20:]]

    def annotate(self, name: str, **annotations: str) -> None:
        """Change annotations of a pod."""
        body = {"metadata": {"annotations": annotations}}
        self.client.patch(f"/api/v1/namespaces/{NAMESPACE}/pods/{name}", body)

    def gpu(self, index: int) -> str:
        """Return the UUID of the node's GPU of this number."""
        return next(str(one["uuid"]) for one in self.server.gpus() if one["index"] == index)

    def lines(self, name: str, container: str = "main") -> list[Json]:
        """Return the JSON lines that a container has written."""
        text = self.node.log(self.pod(name), container)
        return [json.loads(line) for line in text.splitlines() if line.startswith("{")]

    def execute(self, name: str, *command: str, container: str = "main") -> str:
        """Return the output of a command in a running container of the pod."""
        return self.node.execute(container_id(self.pod(name), container), *command)

    def delete(self, *names: str) -> None:
        """Delete pods and wait until the kubelet has ended them and the ledger has released their claims."""
        for name in names:
            # Its controller or an eviction may have deleted it before.
            with suppress(Refused):
                self.client.delete(f"/api/v1/namespaces/{NAMESPACE}/pods/{name}")
        self.wait(lambda: not set(names) & set(self.names()), what=f"pods {names} to be gone")
        self.wait(lambda: not self._claimed(names), what=f"the claims of {names} to be released")

    def names(self) -> list[str]:
        """Return the names of all pods in the namespace."""
        return [pod["metadata"]["name"] for pod in self.pods()]

    def pods(self) -> list[Json]:
        """Return all pods in the namespace."""
        return [json.loads(bytes(raw)) for raw in self.client.list(f"/api/v1/namespaces/{NAMESPACE}/pods")[0]]

    def delete_all(self) -> None:
        if names := self.names():
            self.delete(*names)

    def _claimed(self, pods: Sequence[str]) -> set[str]:
        """Return which of these pods have claims that are not released."""
        left = {claim["uid"] for claim in self.server.claims()}
        return {one["pod"] for one in self.server.pods() if one["pod"] in pods and one["claim"] in left}


def container(name: str, *command: str, **resources: Any) -> Json:
    """Return a container of the tests' image that runs this command, or nothing."""
    return {
        "name": name,
        "image": image.NAME,
        "imagePullPolicy": "Never",
        "command": list(command or IDLE),
        "resources": resources,
    }


@contextmanager
def started(directory: Path, *, shape: tuple[str, ...] = SHAPE, shared: int = GPUS, **settings: str) -> Iterator[Chain]:
    """Start everything, and end it. `shape`: of its GPUs, of which so many take shares; `settings`: of the server."""
    with (
        ControlPlane(directory / "kube", controllers=("replicaset-controller",)) as plane,
        ServerSide(directory / "server", plane, **settings) as server,
        RealNode(directory / "node", plane, NODE) as node,
        Agent(
            directory / "agent", node, server=server.platform.url, token=server.enrolment_token(NODE), shape=shape
        ) as agent,
    ):
        chain = Chain(plane, server, node, agent)
        chain.wait(lambda: chain.node.capacity().get(CORE) == str(shared * 100), what="the node to offer its GPUs")
        yield chain


def runs(pod: Json) -> bool:
    """Return True if every container of the pod runs."""
    found = pod["status"].get("containerStatuses", [])
    return len(found) == len(pod["spec"]["containers"]) and all("running" in one["state"] for one in found)


def status_of(pod: Json, container: str = "main") -> Json:
    """Return the status of one container."""
    [found] = [one for one in pod["status"]["containerStatuses"] if one["name"] == container]
    return dict(found)


def container_id(pod: Json, container: str = "main") -> str:
    return str(status_of(pod, container)["containerID"])
