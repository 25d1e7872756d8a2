"""A GPU that is lost: the node offers less, the pods on it say so, the others and new pods go on."""

import pytest

from apps.clusters.dra import slices
from apps.clusters.dra.requests import name_device
from tests.clusters.cluster_objects import CORE, INDEX, MEMORY
from tests.clusters.dra import things
from tests.kubelet.agent import GPUS, MEMORY_GIB
from tests.kubelet.chain import BLOCK_MIB, NODE, Chain, status_of
from tests.kubelet.claims import PATH, create, delete_claims
from tests.kubelet.reading import environment
from tests.kubelet.server_side import NAMESPACE

pytestmark = [pytest.mark.kubelet, pytest.mark.timeout(600)]
BLOCKS = MEMORY_GIB * 1024 // BLOCK_MIB


def health(chain: Chain, pod: str) -> dict[str, set[str]]:
    """Return the health of a container's devices by resource, as its pod's status has it (KEP-4680)."""
    found = status_of(chain.pod(pod)).get("allocatedResourcesStatus", [])
    return {one["name"]: {device["health"] for device in one["resources"]} for one in found}


def offers(chain: Chain, gpus: int) -> bool:
    found = chain.node.capacity()
    return (found.get(CORE), found.get(MEMORY)) == (str(gpus * 100), str(gpus * BLOCKS))


def test_a_lost_gpu_leaves_the_nodes_allocatable_and_its_pods_say_so(chain: Chain) -> None:
    for name in ("sick", "well"):
        # More than half: on a GPU each.
        chain.run(name, core=70, memory_mib=2048)
    gpu = int(chain.pod("sick")["metadata"]["annotations"][INDEX])
    chain.agent.fault(gpu, "lost=1")
    try:
        chain.wait(lambda: offers(chain, GPUS - 1), what="the node to offer one GPU less")
        assert chain.node.capacity("capacity")[CORE] == str(GPUS * 100)
        chain.wait(
            lambda: health(chain, "sick") == {CORE: {"Unhealthy"}, MEMORY: {"Unhealthy"}},
            what="the pod to say that its devices are unhealthy",
            pod="sick",
        )
        assert health(chain, "well") == {CORE: {"Healthy"}, MEMORY: {"Healthy"}}
        new = chain.run("new", core=30, memory_mib=2048)
        assert int(new["metadata"]["annotations"][INDEX]) != gpu
        assert "running" in status_of(chain.pod("sick"))["state"]
    finally:
        chain.agent.fault(gpu, "lost=0")
    chain.wait(lambda: offers(chain, GPUS), what="the node to offer the GPU again")
    chain.wait(
        lambda: health(chain, "sick") == {CORE: {"Healthy"}, MEMORY: {"Healthy"}},
        what="the pod to say that its devices are healthy again",
        pod="sick",
    )


def test_a_lost_gpu_is_tainted_and_the_pods_of_its_claims_say_so(chain: Chain) -> None:
    chain.client.post(f"{PATH}/resourceclaims", things.claim("gpu", NAMESPACE, core=30, memory="2Gi"))
    try:
        create(chain, "sick", claim="gpu")
        chain.running("sick")
        [uuid] = {environment(chain, "sick")["NVIDIA_VISIBLE_DEVICES"]}
        [gpu] = [one["index"] for one in chain.server.gpus() if one["uuid"] == uuid]
        chain.agent.fault(gpu, "lost=1")
        try:
            chain.wait(lambda: taints(chain) == {name_device(uuid)}, what="a taint of the device")
            chain.wait(lambda: health(chain, "sick") == {"claim:gpu": {"Unhealthy"}}, what="the status", pod="sick")
            assert "running" in status_of(chain.pod("sick"))["state"]
        finally:
            chain.agent.fault(gpu, "lost=0")
        chain.wait(lambda: taints(chain) == set(), what="the device without a taint")
        chain.wait(lambda: health(chain, "sick") == {"claim:gpu": {"Healthy"}}, what="the status", pod="sick")
    finally:
        chain.delete_all()
        delete_claims(chain)


def taints(chain: Chain) -> set[str]:
    """Return the devices of the node's ResourceSlice that take no new work."""
    found = chain.client.get(f"{slices.PATH}/{slices.name_slice(NODE)}")["spec"]["devices"]
    return {one["name"] for one in found if one.get("taints")}
