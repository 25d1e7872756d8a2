"""A real control plane for a session's tests, and their objects in it."""

import json
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from apps.clusters.kube.client import Client, Refused
from apps.clusters.models import Cluster
from apps.clusters.services import bindings, clusters
from apps.quotas.principals import SYSTEM
from tests.cast import Cast
from tests.clusters.control_plane import ControlPlane


@pytest.fixture(scope="session")
def real_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """Start it once; each test makes namespaces of its own."""
    with ControlPlane(tmp_path_factory.mktemp("kube")) as plane:
        yield plane


def until(happens: Callable[[], bool], seconds: float = 60) -> None:
    """Wait until the condition holds; a timeout is an error."""
    limit = time.monotonic() + seconds
    while not happens():
        assert time.monotonic() < limit, "it does not happen"
        time.sleep(0.1)


def know(client: Client, definition: dict[str, Any]) -> None:
    """Wait until the API server serves objects of this kind; repeatable."""
    try:
        client.post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition)
    except Refused as error:
        if error.status != 409:
            raise
    spec = definition["spec"]
    path = f"/apis/{spec['group']}/{spec['versions'][0]['name']}/{spec['names']['plural']}"

    def served() -> bool:
        try:
            client.list(path)
        except Refused:
            return False
        return True

    until(served)


class Namespace:
    """A test's own namespace, bound to acme."""

    def __init__(self, plane: ControlPlane, cast: Cast) -> None:
        self.client: Client = plane.client()
        self.name = f"t-{uuid.uuid4().hex[:8]}"
        self.client.post("/api/v1/namespaces", {"metadata": {"name": self.name}})
        self.cluster: Cluster = clusters.connect(
            principal=SYSTEM, name=self.name, pool=cast.pool, kubeconfig=plane.kubeconfig()
        )
        bindings.bind(principal=SYSTEM, cluster=self.cluster, tenant=cast.acme, namespace=self.name)

    def path(self, kind: str, name: str = "") -> str:
        """Return the path of its objects of a kind."""
        group = "/apis/kubeshare.nthu/v1" if kind == "sharepods" else "/api/v1"
        return f"{group}/namespaces/{self.name}/{kind}" + (f"/{name}" if name else "")

    def make(self, kind: str, thing: dict[str, Any]) -> dict[str, Any]:
        """Create an object in this namespace, with its status."""
        thing["metadata"]["namespace"] = self.name
        thing["metadata"].pop("uid", None)
        made: dict[str, Any] = json.loads(self.client.post(self.path(kind), thing))
        if "status" in thing:
            self.say(kind, made["metadata"]["name"], thing["status"])
        return made

    def say(self, kind: str, name: str, status: dict[str, Any]) -> None:
        """Set a status as a kubelet or a controller does."""
        self.client.patch(f"{self.path(kind, name)}/status", {"status": status})

    def get(self, kind: str, name: str) -> dict[str, Any]:
        return self.client.get(self.path(kind, name))
