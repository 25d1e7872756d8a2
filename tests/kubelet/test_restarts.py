"""A kubelet and an agent that are killed and started again: pods keep running and keep their limits, new ones start."""

from statistics import mean

import pytest

from tests.clusters.cluster_objects import CORE
from tests.clusters.dra import things
from tests.kubelet.agent import GPUS
from tests.kubelet.chain import Chain, status_of
from tests.kubelet.claims import PATH, create, delete_claims
from tests.kubelet.reading import GIB, environment, events, shares
from tests.kubelet.server_side import NAMESPACE

pytestmark = [pytest.mark.kubelet, pytest.mark.timeout(600)]
LOAD = ("gpuload", "--json", "--memory", "1GiB", "--grow", "1536MiB", "--every", "0.2")


def test_pods_outlive_the_kubelet_and_new_ones_start_after_it(chain: Chain) -> None:
    chain.run("old", *LOAD, core=30, memory_mib=2048)
    before = chain.pod("old")
    chain.node.kill_kubelet()
    seen = len(shares(chain, "old"))
    chain.wait(lambda: len(shares(chain, "old")) >= seen + 2, what="kernels without a kubelet", pod="old")
    chain.node.start_kubelet()
    chain.wait(lambda: chain.node.capacity().get(CORE) == str(GPUS * 100), what="the node to offer its GPUs again")
    chain.run("new", core=70, memory_mib=2048)
    after = status_of(chain.pod("old"))
    assert (after["containerID"], after["restartCount"]) == (status_of(before)["containerID"], 0)
    # Both are on the GPU that packing prefers, and the kubelet gave no device twice.
    assert environment(chain, "new")["GPUCLOUD_CLAIM_DIR"] != environment(chain, "old")["GPUCLOUD_CLAIM_DIR"]
    assert chain.pod("old")["status"]["phase"] == chain.pod("new")["status"]["phase"] == "Running"


def test_limits_outlive_the_agent_and_new_pods_start_after_it(chain: Chain) -> None:
    chain.run("old", *LOAD, core=30, memory_mib=2048)
    chain.wait(lambda: shares(chain, "old", least=2), what="kernels", pod="old")
    before = chain.pod("old")
    chain.agent.kill()
    seen, tried = len(shares(chain, "old")), len(events(chain, "old", "grow"))
    chain.wait(lambda: len(shares(chain, "old")) >= seen + 5, what="kernels without an agent", pod="old")
    assert mean(line["share_percent"] for line in shares(chain, "old")[seen + 1 :]) == pytest.approx(30, abs=6)
    assert {line["error_name"] for line in events(chain, "old", "grow")[tried:]} == {"CUDA_ERROR_OUT_OF_MEMORY"}
    chain.agent.start()
    chain.run("new", *LOAD, core=20, memory_mib=2048)
    chain.wait(lambda: shares(chain, "new", least=1), what="kernels of the new pod", pod="new")
    assert {line["total_bytes"] for line in shares(chain, "new")} == {2 * GIB}
    after = status_of(chain.pod("old"))
    assert (after["containerID"], after["restartCount"]) == (status_of(before)["containerID"], 0)


def test_pods_with_resource_claims_outlive_the_kubelet_and_new_ones_start_after_it(chain: Chain) -> None:
    for name in ("old", "new"):
        chain.client.post(f"{PATH}/resourceclaims", things.claim(f"{name}-gpu", NAMESPACE, core=30, memory="2Gi"))
    try:
        create(chain, "old", *LOAD, claim="old-gpu")
        before = chain.running("old")
        chain.node.kill_kubelet()
        create(chain, "new", *LOAD, claim="new-gpu")
        chain.node.start_kubelet()
        chain.running("new")
        after = status_of(chain.pod("old"))
        assert (after["containerID"], after["restartCount"]) == (status_of(before)["containerID"], 0)
    finally:
        chain.delete_all()
        delete_claims(chain)


def test_pods_with_resource_claims_outlive_the_agent_and_wait_for_it(chain: Chain) -> None:
    for name in ("old", "new"):
        chain.client.post(f"{PATH}/resourceclaims", things.claim(f"{name}-gpu", NAMESPACE, core=30, memory="2Gi"))
    try:
        create(chain, "old", *LOAD, claim="old-gpu")
        before = chain.running("old")
        chain.agent.kill()
        create(chain, "new", *LOAD, claim="new-gpu")
        chain.wait(
            lambda: any("FailedPrepareDynamicResources" in event for event in chain.events("new")),
            what="the kubelet to miss the driver",
            pod="new",
        )
        chain.agent.start()
        chain.running("new")
        chain.wait(lambda: shares(chain, "new", least=1), what="kernels of the new pod", pod="new")
        assert {line["total_bytes"] for line in shares(chain, "new")} == {2 * GIB}
        after = status_of(chain.pod("old"))
        assert (after["containerID"], after["restartCount"]) == (status_of(before)["containerID"], 0)
        assert {line["error_name"] for line in events(chain, "old", "grow")} == {"CUDA_ERROR_OUT_OF_MEMORY"}
    finally:
        chain.delete_all()
        delete_claims(chain)


def test_a_container_that_crashes_while_the_agent_is_away_starts_again_after_it(chain: Chain) -> None:
    chain.run("crash", "sh", "-c", "env; gpuload --json --seconds 3", core=20)
    directory = environment(chain, "crash")["GPUCLOUD_CLAIM_DIR"]
    chain.agent.kill()
    chain.wait(
        lambda: "running" not in status_of(chain.pod("crash"))["state"], what="the container to end", pod="crash"
    )
    chain.agent.start()
    chain.running("crash")
    assert environment(chain, "crash")["GPUCLOUD_CLAIM_DIR"] == directory
