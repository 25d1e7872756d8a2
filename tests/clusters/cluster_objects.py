"""Objects of a real cluster for tests."""

import json
from typing import Any

import msgspec

from apps.clusters.kube.client import Client, Refused
from apps.clusters.kube.objects import Pod
from tests.processes import eventually

CORE, MEMORY = "tencent.com/vcuda-core", "tencent.com/vcuda-memory"
INDEX, CHOSEN = "tencent.com/predicate-gpu-idx-0", "tencent.com/predicate-node"
Json = dict[str, Any]


def add_node(client: Client, name: str, *, gpus: int, units: int, **labels: str) -> None:
    """Add a node as the kubelet does after its device plugin has registered."""
    labels = {"nvidia-device-enable": "enable", **labels}
    amounts = {"cpu": "64", "memory": "256Gi", "pods": "110", CORE: str(gpus * 100), MEMORY: str(gpus * units)}
    client.post("/api/v1/nodes", {"metadata": {"name": name, "labels": labels}})
    status = {"capacity": amounts, "allocatable": amounts, "conditions": [{"type": "Ready", "status": "True"}]}
    client.patch(f"/api/v1/nodes/{name}/status", {"status": status})


def add_namespace(client: Client, name: str) -> None:
    client.post("/api/v1/namespaces", {"metadata": {"name": name}})


def give(client: Client, namespace: str, *, core: int, memory: int) -> None:
    """Create a quota once the controller counts: before that it refuses everything, or nothing."""
    hard = {f"requests.{CORE}": str(core), f"requests.{MEMORY}": str(memory)}
    path = f"/api/v1/namespaces/{namespace}/resourcequotas"
    try:
        client.post(path, {"metadata": {"name": "gpu"}, "spec": {"hard": hard}})
    except Refused:  # exists already
        client.patch(f"{path}/gpu", {"spec": {"hard": hard}})
    assert eventually(lambda: client.get(f"{path}/gpu").get("status", {}).get("hard") == hard, seconds=30)


def ask(client: Client, namespace: str, name: str, *, core: int, memory: int = 0) -> None:
    """Create a pod.

    Raises Refused.
    """
    limits = {CORE: str(core), **({MEMORY: str(memory)} if memory else {})}
    container = {"name": "main", "image": "cuda", "resources": {"limits": limits}}
    client.post(
        f"/api/v1/namespaces/{namespace}/pods", {"metadata": {"name": name}, "spec": {"containers": [container]}}
    )


def pod(client: Client, namespace: str, name: str) -> Json:
    return client.get(f"/api/v1/namespaces/{namespace}/pods/{name}")


def placement_of(client: Client, namespace: str, name: str, *, seconds: float = 30) -> tuple[str, str]:
    """Return its node and its GPUs."""
    assert eventually(lambda: "nodeName" in pod(client, namespace, name)["spec"], seconds=seconds), pod(
        client, namespace, name
    )
    found = pod(client, namespace, name)
    assert found["metadata"]["annotations"][CHOSEN] == found["spec"]["nodeName"]
    assert found["metadata"]["annotations"]["tencent.com/gpu-assigned"] == "false"
    return found["spec"]["nodeName"], found["metadata"]["annotations"][INDEX]


def end_as_a_kubelet(client: Client, namespace: str) -> None:
    """Finish pods that are being deleted, as a kubelet does."""
    for raw in client.list(f"/api/v1/namespaces/{namespace}/pods")[0]:
        meta = json.loads(bytes(raw))["metadata"]
        if "deletionTimestamp" in meta:
            remove(client, namespace, meta["name"])


def remove(client: Client, namespace: str, *names: str) -> None:
    for name in names:
        client.delete(f"/api/v1/namespaces/{namespace}/pods/{name}?gracePeriodSeconds=0")


def remove_all(client: Client) -> None:
    """Delete every pod, and wait until none is left."""

    def left() -> list[tuple[str, str]]:
        meta = [msgspec.json.decode(item, type=Pod).metadata for item in client.list("/api/v1/pods")[0]]
        return [(item.namespace, item.name) for item in meta]

    for namespace, name in left():
        remove(client, namespace, name)
    assert eventually(lambda: not left(), seconds=30)


def counted_core(client: Client, namespace: str) -> str:
    """Return the core that Kubernetes counts in the namespace."""
    quota = client.get(f"/api/v1/namespaces/{namespace}/resourcequotas/gpu")
    return str(quota["status"]["used"][f"requests.{CORE}"])
