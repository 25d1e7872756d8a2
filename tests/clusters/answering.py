"""An API server of a few lists, replacing the client of every new connection."""

import json
from collections.abc import Mapping
from typing import Any, ClassVar

import msgspec

from apps.clusters.kube.client import Refused

Json = dict[str, Any]
REVIEW = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


class Answering:
    """The client's methods that operators' requests use. `denied`: resources without any permission."""

    lists: ClassVar[dict[str, list[Json]]] = {}
    denied: ClassVar[set[str]] = set()
    asked: ClassVar[list[Json]] = []

    def __init__(self, kubeconfig: Mapping[str, Any] | None) -> None:
        self.kubeconfig = kubeconfig

    def version(self) -> str:
        return "v1.36.2"

    def get(self, path: str, **query: str) -> Json:
        raise Refused(404, "NotFound", path)

    def list(self, path: str, **query: str) -> tuple[list[msgspec.Raw], str]:
        items = self.lists.get(path.rpartition("/")[2], [])
        return [msgspec.Raw(json.dumps(item).encode()) for item in items], "1"

    def post(self, path: str, body: Mapping[str, Any]) -> bytes:
        assert path == REVIEW, path
        asked = body["spec"]["resourceAttributes"]
        self.asked.append(asked)
        return json.dumps({"status": {"allowed": asked["resource"] not in self.denied}}).encode()


def namespace(name: str, **labels: str) -> Json:
    return {"metadata": {"name": name, "labels": labels}}


def quota(where: str, name: str, **hard: str) -> Json:
    """Return a quota with `core` and `memory` of our resources as requests; others by their own name."""
    words = {"core": "requests.tencent.com/vcuda-core", "memory": "requests.tencent.com/vcuda-memory"}
    said = {words.get(key, key): value for key, value in hard.items()}
    return {"metadata": {"namespace": where, "name": name}, "spec": {"hard": said}, "status": {"used": said}}


def running(name: str, *, where: str = "ml", core: int = 30, units: int = 8, on: str = "gpu1", gpu: int = 0) -> Json:
    """Return a running pod of gpu-manager's."""
    limits = {"tencent.com/vcuda-core": str(core), "tencent.com/vcuda-memory": str(units)}
    return {
        "metadata": {
            "name": name, "namespace": where, "uid": f"uid-{name}",
            "annotations": {"tencent.com/predicate-gpu-idx-0": str(gpu), "tencent.com/predicate-node": on},
        },
        "spec": {"nodeName": on, "containers": [{"name": "main", "resources": {"limits": limits}}]},
        "status": {"phase": "Running"},
    }  # fmt: skip
