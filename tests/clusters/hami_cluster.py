"""A cluster in which HAMi runs, played beside a real control plane: its scheduler, webhook and chart, and kubelets.

HAMi's words are those that its scheduler and webhook write (pkg/util/types.go, pkg/device/devices.go and
pkg/scheduler/webhook.go of HAMi 2.9): pods that ask for `nvidia.com/…` get its scheduler, and then a node and devices.
"""

import base64
import json
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from apps.clusters.admission import reviews
from apps.clusters.admission.handler import answer_review
from apps.clusters.formats import hami, pods
from apps.clusters.kube.client import Client, Refused
from tests.clusters.cluster_objects import CORE, MEMORY

Json = dict[str, Any]
SCHEDULER = "hami-scheduler"
CHART = """apiVersion: v2
name: hami
version: 2.9.0
"""


async def webhook(scope: Any, receive: Any, send: Any) -> None:
    """Give pods that ask for HAMi's resources to HAMi's scheduler."""

    async def judge(review: reviews.Review) -> reviews.Verdict:
        if review.kind != "Pod" or not hami.asks(review.thing):
            return reviews.Verdict()
        return reviews.Verdict(patch=[{"op": "add", "path": "/spec/schedulerName", "value": SCHEDULER}])

    await answer_review(scope, receive, send, judge)


def write_chart(directory: Path, url: str, authority: bytes) -> None:
    """Write a chart `hami-charts/hami` with what of HAMi's chart an API server acts on."""
    hook = {
        "name": "vgpu.hami.io",
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "failurePolicy": "Ignore",
        "clientConfig": {"url": f"{url}/webhook", "caBundle": base64.b64encode(authority).decode()},
        "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}],
    }
    made = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": "hami-webhook"},
        "webhooks": [hook],
    }
    (directory / "hami-charts/hami/templates").mkdir(parents=True)
    (directory / "hami-charts/hami/Chart.yaml").write_text(CHART)
    (directory / "hami-charts/hami/templates/webhook.yaml").write_text(json.dumps(made))


class Played(threading.Thread):
    """HAMi's scheduler, which puts each of its pods on GPU 0 of `node`; and the node's kubelet."""

    def __init__(self, client: Client, node: str, gpu: str, *, besides: Callable[[], None]) -> None:
        """Play until `stop`; call `besides` each time."""
        super().__init__(daemon=True)
        self._client, self._node, self._gpu, self._besides = client, node, gpu, besides
        self._stopped = threading.Event()
        self.failures: list[Exception] = []

    def stop(self) -> None:
        self._stopped.set()
        self.join(30)

    def run(self) -> None:
        while not self._stopped.wait(0.2):
            try:
                for raw in self._client.list("/api/v1/pods")[0]:
                    self._play(json.loads(bytes(raw)))
                self._besides()
            except Refused as error:
                # The pod is gone or has changed meanwhile: it is looked at again.
                if error.status not in (404, 409):
                    self.failures.append(error)
            except Exception as error:  # noqa: BLE001 - the test shows it
                self.failures.append(error)

    def _play(self, pod: Json) -> None:
        meta, spec = pod["metadata"], pod["spec"]
        path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"
        if "deletionTimestamp" in meta:
            self._client.delete(f"{path}?gracePeriodSeconds=0")
        elif spec.get("schedulerName") == SCHEDULER and not spec.get("nodeName"):
            self._place(path, pod)
        elif spec.get("nodeName") and pod["status"]["phase"] == "Pending":
            ready = [{"type": "Ready", "status": "True", "lastTransitionTime": _now()}]
            self._client.patch(f"{path}/status", {"status": {"phase": "Running", "conditions": ready}})

    def _place(self, path: str, pod: Json) -> None:
        asked = hami.asks(pod)
        devices = "".join(f"{self._gpu},NVIDIA,{ask.memory_mib},{ask.core_request}:;" for ask in asked)
        written = {hami.ALLOCATED: devices, hami.TO_ALLOCATE: devices, hami.NODE: self._node, hami.TIME: "1764115200"}
        self._client.patch(path, {"metadata": {"annotations": written}})
        target = {"kind": "Node", "name": self._node}
        self._client.post(f"{path}/binding", {"metadata": {"name": pod["metadata"]["name"]}, "target": target})


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def add_node(client: Client, name: str, *, gpus: int) -> None:
    """Add a node of HAMi's: its device plugin has registered, and ours has not."""
    client.post("/api/v1/nodes", {"metadata": {"name": name, "labels": {"gpu": "on"}}})
    _offer(client, name, {"nvidia.com/gpu": str(gpus * 10)})


def offer_ours(client: Client, name: str, *, gpus: int, units: int) -> None:
    """Let our agent's device plugin register on the node."""
    _offer(client, name, {"nvidia.com/gpu": str(gpus * 10), CORE: str(gpus * 100), MEMORY: str(gpus * units)})


def _offer(client: Client, name: str, resources: Mapping[str, str]) -> None:
    amounts = {"cpu": "64", "memory": "256Gi", "pods": "110", **resources}
    status = {"capacity": amounts, "allocatable": amounts, "conditions": [{"type": "Ready", "status": "True"}]}
    client.patch(f"/api/v1/nodes/{name}/status", {"status": status})


def pod_of(name: str, **limits: str) -> Json:
    """Return a pod that asks in HAMi's words, as its example default_use.yaml: `gpu`, `gpumem`, `gpucores`."""
    asked = {f"nvidia.com/{word}": value for word, value in limits.items()}
    container = {"name": "main", "image": "ubuntu:22.04", "resources": {"limits": asked}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {"containers": [container]}}


def deployment_of(name: str, **limits: str) -> Json:
    """Return a Deployment of such a pod, as its example example.yaml."""
    labels = {"app": name}
    template = {"metadata": {"labels": labels}, "spec": pod_of(name, **limits)["spec"]}
    spec = {"replicas": 1, "selector": {"matchLabels": labels}, "template": template}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": spec}


def identities(client: Client, namespace: str) -> dict[str, tuple[str, str]]:
    """Return uid and version of each pod: a restart changes the first, any write the second."""
    items = [json.loads(bytes(raw)) for raw in client.list(f"/api/v1/namespaces/{namespace}/pods")[0]]
    return {pod["metadata"]["name"]: (pod["metadata"]["uid"], pod["metadata"]["resourceVersion"]) for pod in items}


def is_hamis(pod: Json) -> bool:
    """Return True if HAMi's scheduler placed the pod."""
    return hami.ALLOCATED in pods.annotations(pod)
