"""MIG instances as devices: what is published, asked, charged and placed; without a cluster."""

from collections.abc import Mapping
from typing import Any

import pytest

from apps.clusters.core.devices import class_of_profile, is_ours, profile_of_class
from apps.clusters.dra import instances, ledger, partitions, requests, slices
from apps.clusters.dra.partitions import MigDevice
from apps.clusters.dra.publishing import CLASSES, Publisher
from apps.clusters.formats.asks import Unreadable
from apps.clusters.kube.client import Refused
from apps.clusters.models import Cluster, DeviceClaim
from apps.clusters.services import bindings, clusters
from apps.nodes.models import Node
from apps.quotas.principals import SYSTEM
from apps.scheduling.core.mig import Mig
from tests.cast import GIB, Cast, Machine, give, used
from tests.clusters.dra.test_ledger import Cell
from tests.scheduling.divided import MEMORY_MIB, on_the_wire, profiles

Json = dict[str, Any]
NODE, UID = "gpu1", "0b6e5e0e-7a0f-4b5e-9b0f-6f1f3a6d1c11"
GPU = MigDevice("GPU-11111111-2222-3333-4444-555555555555", 0, "NVIDIA H200", "580.1", "default", Mig(profiles()))


def asking(name: str = "train", uid: str = UID, **exactly: Any) -> Json:
    asked = {"deviceClassName": "mig-3g.71gb.gpucloud.io", **exactly}
    meta = {"name": name, "namespace": "vision", "uid": uid}
    return {"metadata": meta, "spec": {"devices": {"requests": [{"name": "gpu", "exactly": asked}]}}}


def at(thing: Json, uuid: str, start: int, profile: str = "3g-71gb") -> Json:
    """Return it as kube-scheduler has allocated it."""
    result = {"request": "gpu", "driver": "gpucloud.io", "pool": f"{NODE}/{uuid.lower()}",
              "device": f"{uuid.lower()}-mig-{profile}-{start}"}  # fmt: skip
    return {**thing, "status": {"allocation": {"devices": {"results": [result]}}}}


@pytest.fixture
def cluster(cast: Cast) -> Cluster:
    made = clusters.connect(principal=SYSTEM, name="kube", pool=cast.pool, in_cluster=True)
    bindings.bind(principal=SYSTEM, cluster=made, tenant=cast.acme, namespace="vision")
    give(cast.acme, core_percent=100, memory_mib=1000 * GIB)
    return made


@pytest.fixture
def machine(cast: Cast, cluster: Cluster) -> Machine:
    made = Machine(NODE, cast.pool, gpus=1, memory_mib=MEMORY_MIB["H200"], model="NVIDIA H200", mig={0: on_the_wire()})
    Node.objects.update(kubernetes_node=NODE, dra=True)
    return made


def follow(cluster: Cluster, thing: Json) -> DeviceClaim:
    row = ledger.follow(cluster=cluster, thing=thing, labels=dict)
    assert row is not None
    return row


def test_each_place_is_a_device_that_consumes_its_slices() -> None:
    devices = partitions.devices_of(NODE, "uid", GPU)["spec"]["devices"]
    assert len(devices) == sum(len(profile.starts) for profile in profiles())
    assert max(len(one["name"]) for one in devices) <= 63
    [found] = [one for one in devices if one["name"].endswith("-mig-3g-71gb-4")]
    consumed = found["consumesCounters"][0]["counters"]
    assert sorted(consumed) == [f"memory-slice-{place}" for place in range(4, 8)]
    attributes = {name: next(iter(value.values())) for name, value in found["attributes"].items()}
    assert attributes["type"] == "mig"
    assert (attributes["profile"], attributes["parentUUID"]) == ("3g.71gb", GPU.uuid)


def test_the_place_that_takes_the_least_room_is_the_first_of_its_profile() -> None:
    """kube-scheduler takes the first device that fits: a 1g beside the 4g's slices, a 3g in the upper half."""
    order = [(profile.name, start) for profile, start in partitions.places(GPU.mig)]
    assert next(start for name, start in order if name == "1g.18gb") == GPU.mig.choose("1g.18gb")
    assert [start for name, start in order if name == "3g.71gb"] == [4, 0]


def test_both_slices_say_whose_pool_they_are_and_have_names_that_kubernetes_takes() -> None:
    made = [make("n" * 253, "uid", GPU) for make in partitions.PARTS.values()]
    assert {slices.is_of_pool(one, "default") for one in made} == {True}
    assert {slices.is_of_pool(one, "another") for one in made} == {False}
    assert len({one["metadata"]["name"] for one in made}) == 2
    assert max(len(one["metadata"]["name"]) for one in made) <= 253
    assert {one["spec"]["pool"]["resourceSliceCount"] for one in made} == {2}


@pytest.mark.parametrize("name", ["mig-2g.35gb.gpucloud.io", "vgpu.gpucloud.io"])
def test_our_classes_are_known(name: str) -> None:
    assert is_ours(name)
    assert profile_of_class(class_of_profile("2g.35gb")) == "2g.35gb"


@pytest.mark.parametrize("name", ["mig.nvidia.com", "mig-big.gpucloud.io", "2g.35gb", "mig-2g.35gb+me.gpucloud.io", ""])
def test_others_are_not(name: str) -> None:
    assert not is_ours(name)


@pytest.mark.parametrize(
    ("exactly", "words"),
    [
        ({"count": 2}, "write a ResourceClaim for each"),
        ({"capacity": {"requests": {"memory": "2Gi"}}}, "leave capacity out"),
        ({"allocationMode": "All"}, "set allocationMode to ExactCount"),
        ({"adminAccess": True}, "no adminAccess"),
    ],
)
def test_what_an_instance_cannot_be_is_refused_in_words(exactly: Json, words: str) -> None:
    with pytest.raises(Unreadable, match=words):
        requests.read_request(asking(**exactly))


def test_it_is_charged_with_its_profile_and_placed_where_the_scheduler_said(
    cast: Cast, cluster: Cluster, machine: Machine
) -> None:
    row = follow(cluster, asking())
    assert row.claim is not None
    assert (row.claim.state, row.claim.profile, row.claim.isolation) == ("allocating", "3g.71gb", "hard")
    assert used(cast.acme)["core_percent"] == 42
    # The cheapest place would be 4.
    row = follow(cluster, at(asking(), machine.gpu().uuid, 0))
    assert (row.problem, row.node_name) == ("", NODE)
    assert row.claim is not None
    item = row.claim.assignments.get()
    assert (item.mig_start, item.mig_size) == (0, 4)
    machine.obey()
    row.claim.refresh_from_db()
    assert row.claim.state == "active"


def test_a_place_that_another_claim_has_is_not_given_twice(cast: Cast, cluster: Cluster, machine: Machine) -> None:
    follow(cluster, at(asking(), machine.gpu().uuid, 0))
    second = follow(cluster, at(asking("other", UID.replace("0b", "1b")), machine.gpu().uuid, 0))
    assert "no room for an instance of 3g.71gb at slice 0" in second.problem
    assert second.claim is not None
    assert second.claim.state == "allocating"


def test_a_claim_of_another_profile_than_it_was_charged_with_is_not_placed(cluster: Cluster, machine: Machine) -> None:
    follow(cluster, asking())
    row = follow(cluster, at(asking(), machine.gpu().uuid, 0, profile="7g-141gb"))
    assert "It was charged as 3g.71gb" in row.problem


def test_what_kube_scheduler_gave_is_its_own_until_it_ends(cluster: Cluster, machine: Machine) -> None:
    """Its own allocations are counted by itself; one whose instance is being removed is not free yet."""

    def used_slices() -> int:
        return instances.read(cluster)[NODE][0].mig.used

    follow(cluster, at(asking(), machine.gpu().uuid, 0))
    machine.obey()
    assert used_slices() == 0
    ledger.end(cluster=cluster, uid=UID)
    assert used_slices() == 0b1111
    machine.obey()
    assert used_slices() == 0


def test_slices_and_classes_are_written_and_withdrawn(cluster: Cluster, machine: Machine, settings: Any) -> None:
    settings.ADMISSION_MIG = "serve"
    api = Cell()
    publisher = Publisher(cluster, api)
    assert publisher.publish() == 2
    made = api.things[f"{CLASSES}/mig-2g.35gb.gpucloud.io"]
    assert made["spec"]["extendedResourceName"] == "nvidia.com/mig-2g.35gb"
    assert publisher.publish() == 0
    Node.objects.update(cordoned=True)
    assert publisher.publish() == 2
    Node.objects.update(dra=False)
    publisher.publish()
    assert not [name for name in api.things if name.startswith(slices.PATH)]


def test_classes_are_no_resources_unless_the_operator_says_so(cluster: Cluster, machine: Machine) -> None:
    api = Cell()
    Publisher(cluster, api).publish()
    assert "extendedResourceName" not in api.things[f"{CLASSES}/mig-2g.35gb.gpucloud.io"]


class Refusing(Cell):
    """A cluster that refuses the DeviceClasses of profiles."""

    def post(self, path: str, body: Mapping[str, Any]) -> bytes:
        if path == CLASSES and body["metadata"]["name"].startswith("mig-"):
            raise Refused(422, "Invalid", "metadata.name: Invalid value")
        return super().post(path, body)


def test_a_class_that_the_cluster_refuses_keeps_back_no_slices(cluster: Cluster, machine: Machine) -> None:
    assert Publisher(cluster, Refusing()).publish() == 2
