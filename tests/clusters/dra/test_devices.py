"""Reading the devices that are published: only what changed, with what ResourceClaims consume."""

from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from apps.clusters.dra import slices
from apps.clusters.dra.devices import DeviceReader
from apps.clusters.models import Cluster
from apps.clusters.services import bindings, clusters
from apps.nodes.models import Gpu, Node
from apps.nodes.models.node import FRESH
from apps.quotas.principals import SYSTEM
from tests.cast import GIB, Cast, Machine, give
from tests.clusters.dra.test_ledger import allocated, follow, made

NODES = ("gpu1", "gpu2", "gpu3")


@pytest.fixture
def cluster(cast: Cast) -> Cluster:
    made = clusters.connect(principal=SYSTEM, name="kube", pool=cast.pool, in_cluster=True)
    bindings.bind(principal=SYSTEM, cluster=made, tenant=cast.acme, namespace="vision")
    return made


@pytest.fixture
def machines(cast: Cast) -> list[Machine]:
    found = [Machine(name, cast.pool, gpus=2) for name in NODES]
    for name in NODES:
        Node.objects.filter(name=name).update(kubernetes_node=name, dra=True)
    return found


GPU_CHANGES: list[dict[str, Any]] = [
    {"index": 7}, {"model": "Other"}, {"memory_mib": 5}, {"links": {"GPU-x": "nvlink"}}, {"cordoned": True},
    {"unhealthy": "XID 79"}, {"core_outside": 10}, {"memory_outside_mib": 10}, {"present": False},
]  # fmt: skip
NODE_CHANGES: list[dict[str, Any]] = [
    {"driver_version": "999.1"}, {"cordoned": True}, {"fenced_at": timezone.now()}, {"unhealthy": "DriverFailed"},
    {"draining_at": timezone.now()}, {"last_seen_at": timezone.now() - 2 * FRESH}, {"last_seen_at": None},
]  # fmt: skip


@pytest.mark.parametrize("change", [*GPU_CHANGES, *NODE_CHANGES], ids=lambda change: next(iter(change)))
def test_only_the_nodes_that_changed_are_read_again(
    cluster: Cluster, machines: list[Machine], change: dict[str, Any]
) -> None:
    reader = DeviceReader(cluster)
    first = reader.read()
    assert {node: len(devices) for node, devices in first.items()} == dict.fromkeys(NODES, 2)
    rows: Any = (
        Gpu.objects.filter(pk=machines[1].gpu().pk) if change in GPU_CHANGES else Node.objects.filter(name="gpu2")
    )
    rows.update(**change)
    second = reader.read()
    assert second["gpu1"] is first["gpu1"]
    assert second["gpu3"] is first["gpu3"]
    assert second["gpu2"] is not first["gpu2"]
    # And read as by a reader that knows nothing.
    assert second == DeviceReader(cluster).read()
    if "links" not in change:
        assert second["gpu2"] != first["gpu2"]


def test_nothing_is_read_of_nodes_that_did_not_change(cluster: Cluster, machines: list[Machine]) -> None:
    reader = DeviceReader(cluster)
    reader.read()
    Node.objects.update(last_seen_at=timezone.now())
    with CaptureQueriesContext(connection) as asked:
        reader.read()
    assert not [one for one in asked if "SELECT *" in one["sql"]]
    Gpu.objects.filter(pk=machines[0].gpu().pk).update(cordoned=True)
    with CaptureQueriesContext(connection) as asked:
        reader.read()
    assert len([one for one in asked if "SELECT *" in one["sql"]]) == 1


def test_a_node_that_comes_back_is_read_anew(cluster: Cluster, machines: list[Machine]) -> None:
    reader = DeviceReader(cluster)
    first = reader.read()
    Node.objects.filter(name="gpu2").update(dra=False)
    assert set(reader.read()) == {"gpu1", "gpu3"}
    Node.objects.filter(name="gpu2").update(dra=True)
    assert reader.read() == first


def test_what_a_resource_claim_consumes_is_read_with_its_gpu(
    cast: Cast, cluster: Cluster, machines: list[Machine]
) -> None:
    give(cast.acme, core_percent=None, memory_mib=None)
    reader, gpu = DeviceReader(cluster), machines[0].gpu()
    first = reader.read()
    with CaptureQueriesContext(connection) as asked:
        DeviceReader(cluster).read()
    # One statement for both: a claim that ends between two would take from what is published.
    assert all("clusters_deviceclaim" in one["sql"] for one in asked if "gpu.core_used" in one["sql"])
    follow(cluster, allocated(made(), gpu, core=30, memory_mib=2 * GIB))
    # kube-scheduler has counted it.
    assert reader.read() == first
    Gpu.objects.filter(pk=gpu.pk).update(unhealthy="XID 79")
    [sick] = [one for one in reader.read()["gpu1"] if one.uuid == gpu.uuid]
    assert sick.taints == ((slices.UNHEALTHY, "XID 79"),)
    assert (sick.core_left, sick.memory_left_mib) == (100, gpu.memory_mib)
