"""A cluster in memory: its API server is a dictionary of pods, for tests with thousands of extender requests."""

import json
import threading
from collections.abc import Mapping, Sequence
from typing import Any, cast

import msgspec

from apps.clusters.extender.cluster import Extended
from apps.clusters.kube.client import Client, Refused
from apps.clusters.kube.mirror import Mirror
from apps.clusters.kube.objects import Node, Pod
from apps.clusters.kube.reflector import Observation

Json = dict[str, Any]
Items = list[Json]


def node(name: str, core: int | str, memory: int | str, **more: Any) -> Json:
    amounts = {"tencent.com/vcuda-core": str(core), "tencent.com/vcuda-memory": str(memory), "cpu": "64"}
    return {"metadata": {"name": name, **more}, "status": {"capacity": amounts}}


def container(core: int | str | None = None, memory: int | str | None = None, name: str = "main") -> Json:
    amounts = {"tencent.com/vcuda-core": core, "tencent.com/vcuda-memory": memory}
    return {
        "name": name,
        "resources": {"limits": {key: str(item) for key, item in amounts.items() if item is not None}},
    }


def pod(name: str, *containers: Json, annotations: Json | None = None, on: str = "", phase: str = "Pending") -> Json:
    return {
        "metadata": {
            "name": name, "namespace": "ml", "uid": f"uid-{name}", "annotations": annotations or {},
            "resourceVersion": "1",
        },
        "spec": {"containers": list(containers), **({"nodeName": on} if on else {})},
        "status": {"phase": phase},
    }  # fmt: skip


class Paper:
    """The client's methods that the extender uses. `refuse`: how many of the next patches fail, and how."""

    def __init__(self, nodes: Items, pods: Items = []) -> None:  # noqa: B006
        self.nodes, self.pods = nodes, {item["metadata"]["name"]: item for item in pods}
        self.refusals: list[Refused] = []
        # The same for one pod, by its name.
        self.refusals_of: dict[str, list[Refused]] = {}
        # Patches of these pods wait until their event is set, as at a slow API server.
        self.slow: dict[str, threading.Event] = {}
        self.version = 1
        self.mirror = Mirror()
        self.mirror.see(Observation("nodes", tuple(msgspec.convert(item, Node) for item in nodes), whole=True))
        self.mirror.see(Observation("pods", tuple(msgspec.convert(item, Pod) for item in pods), whole=True))

    def patch(self, path: str, body: Mapping[str, Any]) -> bytes:
        if self.refusals:
            raise self.refusals.pop(0)
        item = self.pods[path.rpartition("/")[2]]
        if (until := self.slow.get(item["metadata"]["name"])) is not None:
            until.wait(60)
        if self.refusals_of.get(item["metadata"]["name"]):
            raise self.refusals_of[item["metadata"]["name"]].pop(0)
        self.version += 1
        item["metadata"]["resourceVersion"] = str(self.version)
        merged = item["metadata"]["annotations"] | body["metadata"]["annotations"]
        item["metadata"]["annotations"] = {key: value for key, value in merged.items() if value is not None}
        return json.dumps(item).encode()

    def list(self, path: str) -> "tuple[Sequence[bytes], str]":
        namespace = path.split("/")[-2]
        pods = [item for item in self.pods.values() if item["metadata"]["namespace"] == namespace]
        return [json.dumps(item).encode() for item in pods], str(self.version)

    def see(self, name: str) -> None:
        """Let the watch report the pod."""
        self.version += 1
        self.pods[name]["metadata"]["resourceVersion"] = str(self.version)
        self.mirror.see(Observation("pods", (msgspec.convert(self.pods[name], Pod),)))

    def extended(self, **options: Any) -> Extended:
        return Extended("paper", cast(Client, self), self.mirror, **options)


def request(asked: Json, nodes: list[Json] | None = None, names: list[str] | None = None) -> bytes:
    """Return a request as kube-scheduler sends it."""
    return json.dumps(
        {"Pod": asked, "Nodes": None if nodes is None else {"metadata": {}, "items": nodes}, "NodeNames": names}
    ).encode()
