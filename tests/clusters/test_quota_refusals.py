"""Quotas of many namespaces: a refusal by one does not affect others, and a quota is identified by its name."""

import json
import typing
from typing import Any

import pytest

from apps.clusters.kube.client import Client, Refused
from apps.clusters.models import Cluster
from apps.clusters.services import bindings, clusters, quota_sync
from apps.quotas.principals import SYSTEM
from tests.cast import Cast, give
from tests.clusters.kubeconfigs import kubeconfig

Json = dict[str, Any]
CORE, MEMORY = "requests.tencent.com/vcuda-core", "requests.tencent.com/vcuda-memory"
DUE = {CORE: "100", MEMORY: "40", "limits.nvidia.com/gpucores": "100", "limits.nvidia.com/gpumem": str(40 * 256)}


class Kube:
    """The ResourceQuotas of an API server, by namespace and name; writes to `closed` namespaces are refused."""

    def __init__(self, closed: str = "") -> None:
        self.closed, self.there = closed, dict[tuple[str, str], Json]()

    def list(self, path: str, **query: str) -> tuple[list[bytes], str]:
        assert path == "/api/v1/resourcequotas"
        named = query["fieldSelector"].removeprefix("metadata.name=")
        return [json.dumps(quota).encode() for (_, name), quota in self.there.items() if name == named], "1"

    def post(self, path: str, body: Json) -> None:
        namespace = self._namespace(path)
        if (namespace, body["metadata"]["name"]) in self.there:
            raise Refused(409, "AlreadyExists", body["metadata"]["name"])
        self.there[namespace, body["metadata"]["name"]] = {
            **body,
            "metadata": {**body["metadata"], "namespace": namespace},
        }

    def patch(self, path: str, body: Json) -> None:
        quota = self.there[self._namespace(path), path.rpartition("/")[2]]
        quota["metadata"] |= body["metadata"]
        hard = quota["spec"]["hard"] | body["spec"]["hard"]
        quota["spec"]["hard"] = {key: value for key, value in hard.items() if value is not None}

    def _namespace(self, path: str) -> str:
        namespace = path.split("/")[4]
        if namespace == self.closed:
            raise Refused(403, "Forbidden", "the account may not write here")
        return namespace


@pytest.fixture
def cluster(cast: Cast) -> Cluster:
    give(cast.acme, core_percent=100, memory_mib=40 * 256)
    made = clusters.connect(principal=SYSTEM, name="kube", pool=cast.pool, kubeconfig=kubeconfig(), sync_quotas=True)
    bindings.bind(principal=SYSTEM, cluster=made, selector={}, tenant=cast.acme)
    return made


def sync(cluster: Cluster, kube: Kube) -> int:
    namespaces: dict[str, dict[str, str]] = {"a": {}, "b": {}, "c": {}}
    return quota_sync.sync(cluster=cluster, client=typing.cast(Client, kube), namespaces=namespaces)


def test_what_one_namespace_refuses_is_no_other_ones_trouble(cluster: Cluster) -> None:
    kube = Kube(closed="b")
    assert sync(cluster, kube) == 2
    assert {namespace for namespace, _ in kube.there} == {"a", "c"}
    kube.closed = ""
    assert sync(cluster, kube) == 1


def test_a_quota_of_our_name_is_ours_also_without_its_label(cluster: Cluster) -> None:
    """A search by label would not find it, and creating it again would fail for ever."""
    kube = Kube()
    sync(cluster, kube)
    quota = kube.there["b", "gpucloud"]
    quota["metadata"]["labels"] = {}
    quota["spec"]["hard"] = {CORE: "9k"}
    assert sync(cluster, kube) == 1
    assert quota["spec"]["hard"] == DUE
    assert sync(cluster, kube) == 0
