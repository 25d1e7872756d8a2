"""ResourceClaims in the ledger, with made-up objects: a real API server's are in test_real_devices."""

import uuid
from collections.abc import Mapping
from typing import Any

import pytest

from apps.clusters.core.devices import DEVICE_CLASS
from apps.clusters.dra import evicting, ledger, resizing, slices
from apps.clusters.dra.devices import DeviceReader
from apps.clusters.dra.publishing import Publisher
from apps.clusters.kube.client import Refused
from apps.clusters.models import Cluster, DeviceClaim
from apps.clusters.services import bindings, clusters
from apps.nodes.models import Gpu, Node
from apps.quotas.principals import SYSTEM
from apps.scheduling.models import Claim
from apps.scheduling.services.claims import lifecycle
from apps.scheduling.services.claims.desired import desired_state
from tests.cast import GIB, Cast, Machine, assert_books_agree, give, placed, used
from tests.clusters.dra import things
from tests.clusters.rights import require

NODE = "gpu1"


@pytest.fixture
def cluster(cast: Cast) -> Cluster:
    made = clusters.connect(principal=SYSTEM, name="kube", pool=cast.pool, in_cluster=True)
    bindings.bind(principal=SYSTEM, cluster=made, tenant=cast.acme, namespace="vision")
    return made


@pytest.fixture
def machine(cast: Cast) -> Machine:
    made = Machine(NODE, cast.pool, gpus=2)
    Node.objects.filter(pk=made.node.pk).update(kubernetes_node=NODE, dra=True)
    made.node.refresh_from_db()
    return made


def made(name: str = "train", namespace: str = "vision", **asked: Any) -> dict[str, Any]:
    """Return a ResourceClaim as the API server has it."""
    thing = things.claim(name, namespace, **asked)
    thing["metadata"] |= {"uid": str(uuid.uuid4()), "resourceVersion": "1"}
    return thing


def allocated(thing: dict[str, Any], *gpus: Gpu, core: int = 30, memory_mib: int = 2 * GIB) -> dict[str, Any]:
    """Return it with these GPUs, reserved for a pod."""
    results = [things.result(gpu.uuid, NODE, core=core, memory_mib=memory_mib) for gpu in gpus]
    status = {"allocation": {"devices": {"results": results}}}
    users = [{"resource": "pods", "name": "p", "uid": "pod-1"}]
    return {**thing, "status": {**status, "reservedFor": users} if gpus else {}}


def follow(cluster: Cluster, thing: dict[str, Any]) -> DeviceClaim:
    row = ledger.follow(cluster=cluster, thing=thing, labels=dict)
    assert row is not None
    resizing.follow(row, thing, labels=dict)
    row.refresh_from_db()
    return row


def annotated(thing: dict[str, Any], **words: str) -> dict[str, Any]:
    annotations = {f"gpucloud.io/{name}": word for name, word in words.items()}
    return {**thing, "metadata": {**thing["metadata"], "annotations": annotations}}


class Cell:
    """An API of a cluster that keeps what is written, and lets the watch do what its manifests let it do."""

    def __init__(self) -> None:
        self.things: dict[str, Any] = {f"/api/v1/nodes/{NODE}": {"metadata": {"uid": "node-uid"}}}
        self.written: list[tuple[str, Mapping[str, Any]]] = []
        self.version = 1

    def find(self, path: str) -> Any:
        require("GET", path)
        return self.things.get(path)

    def post(self, path: str, body: Mapping[str, Any]) -> bytes:
        require("POST", path)
        name = body.get("metadata", {}).get("name") or str(len(self.written))
        return self._keep(f"{path}/{name}", body)

    def put(self, path: str, body: Mapping[str, Any]) -> bytes:
        require("PUT", path)
        return self._keep(path, body)

    def _keep(self, path: str, body: Mapping[str, Any]) -> bytes:
        self.version += 1
        self.things[path] = {**body, "metadata": {**body.get("metadata", {}), "resourceVersion": str(self.version)}}
        self.written.append((path, body))
        return f'{{"metadata": {{"resourceVersion": "{self.version}"}}}}'.encode()

    def patch(self, path: str, body: Mapping[str, Any], *, content_type: str) -> bytes:
        assert content_type == resizing.APPLY
        require("PATCH", path)
        self.written.append((path, body))
        return b"{}"

    def delete(self, path: str) -> bytes:
        require("DELETE", path)
        del self.things[path]
        return b"{}"


def test_it_is_charged_placed_sent_to_its_agent_and_ends(cast: Cast, cluster: Cluster, machine: Machine) -> None:
    give(cast.acme, core_percent=100, memory_mib=100 * GIB)
    thing = made(count=2)
    row = follow(cluster, thing)
    assert row.claim is not None
    assert row.claim.state == "allocating"
    assert used(cast.acme)["core_percent"] == 60
    row = follow(cluster, allocated(thing, machine.gpu(0), machine.gpu(1)))
    machine.obey()
    assert row.claim is not None
    row.claim.refresh_from_db()
    assert (row.claim.state, row.node_name, row.problem) == ("active", NODE, "")
    sent = {one.gpu_uuid: one.resource_claim for one in desired_state(machine.node).assignments}
    assert set(sent) == {machine.gpu(0).uuid, machine.gpu(1).uuid}
    first = sent[machine.gpu(0).uuid]
    assert first is not None
    assert (first.uid, first.pool, first.device) == (row.uid, NODE, machine.gpu(0).uuid.lower())
    assert (first.request, first.share_id) == ("gpu", things.SHARE)
    ledger.end(cluster=cluster, uid=row.uid)
    machine.obey()
    assert used(cast.acme)["core_percent"] == 0
    assert_books_agree()


def test_it_waits_for_no_round_of_ours(cast: Cast, cluster: Cluster, machine: Machine) -> None:
    give(cast.acme, core_percent=100, memory_mib=100 * GIB)
    row = follow(cluster, made())
    placed(cast, machine, core_request=10)
    assert row.claim is not None
    row.claim.refresh_from_db()
    assert row.claim.state == "allocating"
    assert cast.anna.get("pools/default/queue/").body["results"] == []


def test_what_cannot_be_charged_is_a_problem_until_it_can(cast: Cast, cluster: Cluster, machine: Machine) -> None:
    thing = made()
    assert "quota" in follow(cluster, thing).problem.lower()
    give(cast.acme, core_percent=100, memory_mib=100 * GIB)
    assert follow(cluster, thing).problem == ""
    foreign = follow(cluster, made(namespace="elsewhere"))
    assert foreign.problem == "Namespace elsewhere is bound to no tenant: bind it."


def test_what_has_no_room_is_a_problem_and_its_pod_is_evicted(
    cast: Cast, cluster: Cluster, machine: Machine, settings: Any
) -> None:
    give(cast.acme, core_percent=None, memory_mib=None)
    claim, _ = placed(cast, machine, core_request=90, memory_mib=GIB)
    thing = allocated(made(), claim.assignments.get().gpu)
    row = follow(cluster, thing)
    assert "no room" in row.problem
    assert used(cast.acme)["core_percent"] == 120
    api, there = Cell(), {row.uid: thing}
    assert evicting.evict(cluster=cluster, api=api, there=there, ending=()) == set()
    DeviceClaim.objects.update(problem_since="2026-01-01T00:00:00Z")
    assert evicting.evict(cluster=cluster, api=api, there=there, ending=()) == {"pod-1"}
    [(path, body), (_, event)] = api.written
    assert path.startswith("/api/v1/namespaces/vision/pods/p/eviction")
    assert body["deleteOptions"] == {"preconditions": {"uid": "pod-1"}}
    assert event["reason"] == "NoClaim"
    assert "no room" in event["message"]
    # Once.
    evicting.evict(cluster=cluster, api=api, there=there, ending={"pod-1"})
    assert len(api.written) == 2
    # Its allocation is taken away, and it is charged for the next one.
    lifecycle.release_claim(principal=SYSTEM, claim=claim)
    machine.obey()
    assert follow(cluster, allocated(thing)).problem == ""


def test_a_released_claim_ends_its_pod(cast: Cast, cluster: Cluster, machine: Machine) -> None:
    give(cast.acme, core_percent=None, memory_mib=None)
    thing = allocated(made(), machine.gpu())
    row = follow(cluster, thing)
    machine.obey()
    assert row.claim is not None
    lifecycle.release_claim(principal=SYSTEM, claim=row.claim)
    machine.obey()
    # While it is allocated nothing new is charged: its pod is to end.
    assert follow(cluster, thing).claim == row.claim
    api = Cell()
    assert evicting.evict(cluster=cluster, api=api, there={row.uid: thing}, ending=()) == {"pod-1"}
    assert api.written[1][1]["reason"] == "Released"
    anew = follow(cluster, allocated(thing)).claim
    assert anew is not None
    assert (anew.pk != row.claim.pk, anew.state) == (True, "allocating")
    assert_books_agree()


def test_an_annotation_resizes_and_the_status_tells(cast: Cast, cluster: Cluster, machine: Machine) -> None:
    give(cast.acme, core_percent=100, memory_mib=100 * GIB)
    thing = allocated(made(), machine.gpu())
    row, api = follow(cluster, thing), Cell()
    there, teller = {row.uid: thing}, resizing.Teller(cluster, api)
    # A new claim's pending status is not worth a write.
    assert teller.tell(there) == 0
    Claim.objects.update(assigned_at="2026-01-01T00:00:00Z")

    def condition() -> tuple[str, str, Any]:
        teller.tell(there)
        [device] = api.written[-1][1]["status"]["devices"]
        return device["conditions"][0]["status"], device["conditions"][0]["reason"], device["data"]["core"]

    assert condition() == ("False", "Pending", 30)
    machine.obey()
    assert condition() == ("True", "InForce", 30)
    follow(cluster, annotated(thing, core="60", memory="4Gi"))
    assert condition() == ("False", "Pending", 60)
    machine.obey()
    assert condition() == ("True", "InForce", 60)
    assert used(cast.acme) == {**used(cast.acme), "core_percent": 60, "memory_mib": 4 * GIB}
    # Told once.
    count = len(api.written)
    assert teller.tell(there) == 0
    assert len(api.written) == count
    follow(cluster, annotated(thing, core="101"))
    assert condition() == ("False", "Refused", 60)
    follow(cluster, annotated(thing, core="20"))
    machine.obey()
    assert condition() == ("True", "InForce", 20)
    assert api.written[-1][0].endswith("/resourceclaims/train/status?fieldManager=gpucloud&force=true")


def test_the_sums_of_kube_scheduler_and_ledger_are_one(cast: Cast, cluster: Cluster, machine: Machine) -> None:
    give(cast.acme, core_percent=None, memory_mib=None)
    gpu = machine.gpu()

    def left() -> tuple[int, int]:
        """Return what kube-scheduler has left: what is published, less what it has allocated."""
        found = next(one for one in DeviceReader(cluster).read()[NODE] if one.uuid == gpu.uuid)
        return found.core_left - 30, found.memory_left_mib - 2 * GIB

    thing = allocated(made(), gpu)
    follow(cluster, thing)
    machine.obey()
    for words, core in (({}, 30), ({"core": "60"}, 60), ({"core": "10"}, 10)):
        follow(cluster, annotated(thing, **words))
        machine.obey()
        gpu.refresh_from_db()
        assert gpu.core_used == core
        assert left() == (gpu.core_free, gpu.memory_free_mib)


def test_slices_are_written_when_they_change_and_after_others(cast: Cast, cluster: Cluster, machine: Machine) -> None:
    api = Cell()
    publisher = Publisher(cluster, api)
    assert publisher.publish() == 1
    assert [path for path, _ in api.written] == [
        f"/apis/resource.k8s.io/v1/deviceclasses/{DEVICE_CLASS}",
        f"/apis/resource.k8s.io/v1/resourceslices/{NODE}-gpucloud.io",
    ]
    assert publisher.publish() == 0
    # Our own write comes back; somebody else's is newer.
    publisher.compare(slices.name_slice(NODE), str(api.version))
    assert publisher.publish() == 0
    publisher.compare(slices.name_slice(NODE), str(api.version + 1))
    assert publisher.publish() == 1
    Gpu.objects.filter(pk=machine.gpu().pk).update(unhealthy="XID 79")
    assert publisher.publish() == 1
    assert api.written[-1][1]["spec"]["devices"][0]["taints"][0]["value"] == "XID-79"
    publisher.forget_others(set())
    assert publisher.publish() == 1
    Node.objects.update(dra=False)
    assert publisher.publish() == 0
    assert f"/apis/resource.k8s.io/v1/resourceslices/{NODE}-gpucloud.io" not in api.things


def test_a_node_of_another_cluster_is_not_published(cast: Cast, cluster: Cluster, machine: Machine) -> None:
    api = Cell()
    del api.things[f"/api/v1/nodes/{NODE}"]
    assert Publisher(cluster, api).publish() == 0
    assert not [path for path, _ in api.written if "resourceslices" in path]


def test_unequal_devices_are_a_problem(cast: Cast, cluster: Cluster, machine: Machine) -> None:
    give(cast.acme, core_percent=None, memory_mib=None)
    thing = allocated(made(), machine.gpu(0), machine.gpu(1))
    thing["status"]["allocation"]["devices"]["results"][0]["consumedCapacity"]["core"] = "40"
    assert "unequal shares" in follow(cluster, thing).problem
    gone = allocated(made("gone"), machine.gpu())
    gone["status"]["allocation"]["devices"]["results"][0]["device"] = "gpu-gone"
    assert follow(cluster, gone).problem == f"Node {NODE} has no gpu-gone."


def test_annotations_resize_the_next_allocation_too(cast: Cast, cluster: Cluster, machine: Machine) -> None:
    give(cast.acme, core_percent=100, memory_mib=100 * GIB)
    thing = annotated(made(), core="60")

    def size_on(gpu: Gpu) -> int:
        # The event of the status follows the one of the allocation.
        follow(cluster, allocated(thing, gpu))
        row = follow(cluster, allocated(thing, gpu))
        assert row.claim is not None
        row.claim.refresh_from_db()
        return row.claim.core_request

    assert size_on(machine.gpu()) == 60
    machine.obey()
    # Its last pod ends, and Kubernetes takes the allocation away; then another pod comes.
    ended = follow(cluster, thing)
    assert ended.claim is not None
    assert (ended.claim.state, ended.claim.core_request) == ("allocating", 30)
    machine.obey()
    assert size_on(machine.gpu(1)) == 60


def test_the_status_says_why_a_smaller_limit_is_pending(cast: Cast, cluster: Cluster, machine: Machine) -> None:
    give(cast.acme, core_percent=100, memory_mib=100 * GIB)
    thing = allocated(made(), machine.gpu())
    row, api = follow(cluster, thing), Cell()
    machine.obey()
    follow(cluster, annotated(thing, memory="1Gi"))
    teller = resizing.Teller(cluster, api)

    def told() -> str:
        teller.tell({row.uid: thing})
        return str(api.written[-1][1]["status"]["devices"][0]["conditions"][0]["message"])

    assert told() == "the claim is active"
    assert row.claim is not None
    row.claim.assignments.update(reason="its processes use 1500 MiB")
    assert told() == "its processes use 1500 MiB"
    count = len(api.written)
    told()
    assert len(api.written) == count
    machine.obey()
    row.claim.assignments.update(reason="")
    assert told() == ""


def test_a_slice_that_an_earlier_process_has_left_is_removed(cast: Cast, cluster: Cluster, machine: Machine) -> None:
    api, path = Cell(), f"/apis/resource.k8s.io/v1/resourceslices/{NODE}-gpucloud.io"
    Publisher(cluster, api).publish()
    thing = api.things[path]
    assert slices.is_of_pool(thing, cluster.pool.name)
    assert not slices.is_of_pool(thing, "another")
    later = Publisher(cluster, api)
    later.inherit({slices.name_slice(NODE)})
    later.publish()
    assert path in api.things
    # Somebody changes the slice at the moment at which the node is no longer a driver's.
    later.compare(slices.name_slice(NODE), str(api.version + 1))
    Node.objects.update(dra=False)
    later.publish()
    assert path not in api.things
    api.things[path] = thing
    last = Publisher(cluster, api)
    last.inherit({slices.name_slice(NODE)})
    last.publish()
    assert path not in api.things


def test_a_refused_slice_keeps_back_no_other(cast: Cast, cluster: Cluster, machine: Machine) -> None:
    other = Machine("gpu2", cast.pool)
    Node.objects.filter(pk=other.node.pk).update(kubernetes_node="gpu2", dra=True)

    class Strict(Cell):
        def post(self, path: str, body: Mapping[str, Any]) -> bytes:
            if body.get("spec", {}).get("nodeName") == NODE:
                raise Refused(422, "Invalid", "spec.devices[0]: Invalid value")
            return super().post(path, body)

    api = Strict()
    api.things["/api/v1/nodes/gpu2"] = {"metadata": {"uid": "other-uid"}}
    assert Publisher(cluster, api).publish() == 1
    assert "/apis/resource.k8s.io/v1/resourceslices/gpu2-gpucloud.io" in api.things


def test_a_claim_names_its_resource_claim(cast: Cast, cluster: Cluster, machine: Machine) -> None:
    give(cast.acme, core_percent=100, memory_mib=100 * GIB)
    row = follow(cluster, allocated(made("train"), machine.gpu()))
    assert row.claim is not None
    answer = cast.anna.get(f"claims/{row.claim.uid}/").body
    assert answer["used_by"] == "ResourceClaim vision/train"
    other, _ = placed(cast, machine, core_request=10)
    assert cast.anna.get(f"claims/{other.uid}/").body["used_by"] == ""
