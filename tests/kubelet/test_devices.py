"""ResourceClaims on a real kubelet: prepared by the agent's driver, resized while their pods run, many at once."""

import json
import time
from collections import Counter
from collections.abc import Iterator
from statistics import mean
from typing import Any

import pytest

from apps.clusters.dra import requests
from tests.clusters import cluster_objects
from tests.clusters.dra import things
from tests.kubelet.agent import GPUS
from tests.kubelet.chain import Chain, container, runs, status_of
from tests.kubelet.claims import PATH, create, delete_claims, left
from tests.kubelet.reading import GIB, environment, shares
from tests.kubelet.server_side import NAMESPACE

pytestmark = [pytest.mark.kubelet, pytest.mark.timeout(900)]
# More than the node has: as many as fit run, and the others wait.
BURST, CORE = 100, 5
FIT = GPUS * 100 // CORE
BURST_SECONDS = 400.0


@pytest.fixture
def devices(chain: Chain) -> Iterator[Chain]:
    """Return the chain whose node offers its GPUs as devices."""
    chain.wait(lambda: left(chain) == [100] * GPUS, what="the node's whole GPUs in its ResourceSlice")
    yield chain
    chain.delete_all()
    delete_claims(chain)


def condition(chain: Chain, claim: str) -> tuple[str, int]:
    """Return the status of our condition, and the percent that is in force."""
    found = (chain.client.get(f"{PATH}/resourceclaims/{claim}").get("status", {}).get("devices") or [{}])[0]
    conditions = found.get("conditions") or [{"status": ""}]
    return conditions[0]["status"], int(found.get("data", {}).get("core", 0))


def test_a_resource_claim_is_prepared_resized_while_its_pod_runs_and_whole_again(
    devices: Chain, figures: dict[str, float]
) -> None:
    devices.client.post(f"{PATH}/resourceclaims", things.claim("train", NAMESPACE, core=30, memory="2Gi"))
    begun = time.monotonic()
    create(devices, "train", "gpuload", "--json", "--interval", "0.05", "--memory", "1GiB", claim="train")
    devices.running("train")
    figures["from the create of a pod with a ResourceClaim until it runs"] = time.monotonic() - begun
    devices.wait(lambda: shares(devices, "train", least=60), what="three seconds of kernels", pod="train")
    seen = shares(devices, "train")
    assert {line["total_bytes"] for line in seen} == {2 * GIB}
    assert mean(line["share_percent"] for line in seen[20:]) == pytest.approx(30, abs=6)
    devices.wait(lambda: condition(devices, "train") == ("True", 30), what="the condition", pod="train")

    before, begun = devices.pod("train"), time.monotonic()
    words = {requests.CORE_KEY: "60", requests.MEMORY_KEY: "4Gi"}
    devices.client.patch(f"{PATH}/resourceclaims/train", {"metadata": {"annotations": words}})

    def enlarged() -> list[dict[str, Any]]:
        return [line for line in shares(devices, "train") if line["total_bytes"] == 4 * GIB]

    devices.wait(enlarged, what="the new limit in the container", pod="train")
    figures["from a ResourceClaim's annotation to the new limit in the container"] = enlarged()[0]["at"] - begun
    devices.wait(lambda: len(enlarged()) >= 80, what="four seconds of kernels", pod="train")
    assert mean(line["share_percent"] for line in enlarged()[20:]) == pytest.approx(60, abs=8)
    devices.wait(lambda: condition(devices, "train") == ("True", 60), what="the condition", pod="train")
    assert status_of(devices.pod("train"))["containerID"] == status_of(before)["containerID"]

    devices.delete("train")
    devices.client.delete(f"{PATH}/resourceclaims/train")
    devices.wait(lambda: left(devices) == [100] * GPUS and not devices.server.claims(), what="whole GPUs again")
    assert not list(devices.node.cdi_directory.glob("*.json"))


def test_of_a_hundred_claims_at_once_as_many_run_as_fit_and_the_others_after_them(
    devices: Chain, figures: dict[str, float]
) -> None:
    template = {
        "metadata": {"name": "small", "namespace": NAMESPACE}, "spec": {"spec": things.spec(core=CORE, memory="1Gi")}
    }  # fmt: skip
    devices.client.post(f"{PATH}/resourceclaimtemplates", template)
    begun = time.monotonic()
    names = [f"b-{number}" for number in range(BURST)]
    for name in names:
        create(devices, name, template="small")

    def running() -> list[str]:
        pods = [json.loads(bytes(raw)) for raw in devices.client.list(f"/api/v1/namespaces/{NAMESPACE}/pods")[0]]
        return [pod["metadata"]["name"] for pod in pods if runs(pod)]

    devices.wait(lambda: len(running()) >= FIT, what=f"{FIT} pods to run", seconds=BURST_SECONDS)
    figures[f"from the first of {BURST} claims until {FIT} run"] = time.monotonic() - begun
    first = running()
    held = Counter(environment(devices, name)["NVIDIA_VISIBLE_DEVICES"] for name in first)
    assert sorted(held.values()) == [100 // CORE] * GPUS
    for gpu in devices.server.gpus():
        assert (gpu["core_used"], gpu["memory_used_mib"]) == (100, 100 // CORE * 1024)
    devices.delete(*first[: BURST - FIT])
    rest = set(names) - set(first)
    devices.wait(lambda: rest <= set(running()), what="the others to run", seconds=BURST_SECONDS)
    for gpu in devices.server.gpus():
        assert gpu["core_used"] <= 100
    for part, percent in (("wait", 99), ("work", 99)):
        seconds = devices.agent.prepare_seconds(part, percent)
        figures[f"p{percent} of a prepare's {part}, at most"] = seconds


def test_of_claims_and_of_pods_at_once_as_many_run_as_fit(devices: Chain) -> None:
    """kube-scheduler allocates devices and asks the extender about other pods: both can promise one GPU's rest.

    The ledger refuses one of the two. Its pod is evicted, and the controller's next pod goes where there is room.
    """
    template = {
        "metadata": {"name": "large", "namespace": NAMESPACE}, "spec": {"spec": things.spec(core=40, memory="1Gi")}
    }  # fmt: skip
    devices.client.post(f"{PATH}/resourceclaimtemplates", template)
    by_claim = {"containers": [container("main", claims=[{"name": "gpu"}])], "resourceClaims": [
        {"name": "gpu", "resourceClaimTemplateName": "large"}
    ]}  # fmt: skip
    by_plugin = {"containers": [container("main", limits={cluster_objects.CORE: "40", cluster_objects.MEMORY: "4"})]}

    def running() -> list[str]:
        assert all(gpu["core_used"] <= 100 for gpu in devices.server.gpus())
        return [pod["metadata"]["name"] for pod in devices.pods() if runs(pod)]

    with devices.replicas("device", by_claim, 6), devices.replicas("plugin", by_plugin, 6):
        fitting = 2 * GPUS
        devices.wait(lambda: len(running()) >= fitting, what=f"{fitting} pods to run", seconds=BURST_SECONDS)
        held = Counter(environment(devices, name)["NVIDIA_VISIBLE_DEVICES"] for name in running())
        assert sorted(held.values()) == [2] * GPUS
        # The others wait, and their events say why.
        waiting = next(name for name in devices.names() if name not in running())
        devices.wait(lambda: devices.events(waiting), what="an event of a pod that waits", pod=waiting)
