"""Pods on a real kubelet: their limits in the container, many at once, a resize, a crash."""

import time
from statistics import mean

import pytest

from tests.clusters.cluster_objects import CORE, INDEX, MEMORY
from tests.kubelet.agent import GPUS, MEMORY_GIB
from tests.kubelet.chain import BLOCK_MIB, Chain, status_of
from tests.kubelet.reading import GIB, Json, environment, events, shares

pytestmark = [pytest.mark.kubelet, pytest.mark.timeout(600)]
# Percent and GiB: of each row as many as are said, together less than the node has.
MIXED = {(50, 8): 4, (25, 6): 4, (15, 4): 4, (10, 2): 2}


def test_the_node_offers_its_gpus_by_the_device_plugin(chain: Chain) -> None:
    for which in ("capacity", "allocatable"):
        found = chain.node.capacity(which)
        assert (found[CORE], found[MEMORY]) == (str(GPUS * 100), str(GPUS * MEMORY_GIB * 1024 // BLOCK_MIB))


def test_a_container_has_the_limits_that_its_pod_asked_for(chain: Chain) -> None:
    load = ("gpuload", "--json", "--memory", "1GiB", "--grow", "1536MiB", "--every", "0.2")
    chain.run("one", *load, core=30, memory_mib=2048)
    assert "libvcuda.so" in chain.execute("one", "cat", "/etc/ld.so.preload")
    assert "libvcuda.so" in chain.execute("one", "cat", "/proc/1/maps")
    grown = chain.wait(lambda: events(chain, "one", "grow"), what="a try to grow", pod="one")
    assert {line["error_name"] for line in grown} == {"CUDA_ERROR_OUT_OF_MEMORY"}
    seconds = chain.wait(lambda: shares(chain, "one", least=6), what="six seconds of kernels", pod="one")
    assert {line["total_bytes"] for line in seconds} == {2 * GIB}
    # Without the first second, in which the queue is filled; other tests' work may delay a turn.
    assert mean(line["share_percent"] for line in seconds[1:]) == pytest.approx(30, abs=6)


def test_fourteen_pods_of_mixed_sizes_run_and_no_gpu_is_over_committed(chain: Chain, figures: dict[str, float]) -> None:
    wanted = {f"p-{core}-{number}": (core, gib) for (core, gib), count in MIXED.items() for number in range(count)}
    begun = time.monotonic()
    for name, (core, gib) in wanted.items():
        chain.create(name, core=core, memory_mib=gib * 1024)
    for name in wanted:
        chain.running(name)
    figures["from the first create to fourteen running pods"] = time.monotonic() - begun
    held: dict[str, list[tuple[int, int]]] = {}
    claims = set()
    for name, size in wanted.items():
        variables = environment(chain, name)
        claims.add(variables["GPUCLOUD_CLAIM_DIR"])
        held.setdefault(variables["NVIDIA_VISIBLE_DEVICES"], []).append(size)
        assert chain.gpu(int(chain.pod(name)["metadata"]["annotations"][INDEX])) == variables["NVIDIA_VISIBLE_DEVICES"]
    assert len(claims) == len(wanted)
    for gpu, sizes in held.items():
        assert sum(core for core, _ in sizes) <= 100, (gpu, sizes)
        assert sum(gib for _, gib in sizes) <= MEMORY_GIB, (gpu, sizes)


def test_a_resize_by_annotation_is_in_force_in_the_running_container(chain: Chain, figures: dict[str, float]) -> None:
    chain.run("grow", "gpuload", "--json", "--interval", "0.05", core=30, memory_mib=2048)
    chain.wait(lambda: shares(chain, "grow", least=40), what="two seconds of kernels", pod="grow")
    before = chain.pod("grow")
    begun = time.monotonic()
    chain.annotate("grow", **{"gpucloud.io/vcuda-core": "60", "gpucloud.io/vcuda-memory": str(4 * 1024 // BLOCK_MIB)})

    def enlarged() -> list[Json]:
        return [line for line in shares(chain, "grow") if line["total_bytes"] == 4 * GIB]

    chain.wait(enlarged, what="the new limit in the container", pod="grow")
    # The container reads the same clock.
    figures["from the annotation to the new limit in the container"] = enlarged()[0]["at"] - begun
    chain.wait(lambda: len(enlarged()) >= 80, what="four seconds of kernels", pod="grow")
    assert mean(line["share_percent"] for line in enlarged()[20:]) == pytest.approx(60, abs=8)
    chain.wait(
        lambda: "in-force" in chain.pod("grow")["metadata"]["annotations"].get("gpucloud.io/resize-status", ""),
        what="the pod to say that it is in force",
        pod="grow",
    )
    assert status_of(chain.pod("grow"))["containerID"] == status_of(before)["containerID"]


def test_a_container_that_crashes_is_restarted_under_its_claim(chain: Chain) -> None:
    chain.run("crash", "sh", "-c", "env; gpuload --json --memory 512MiB --seconds 1.2; exit 1", core=20)
    first = environment(chain, "crash")["GPUCLOUD_CLAIM_DIR"]
    chain.wait(
        lambda: status_of(chain.pod("crash"))["restartCount"] >= 2, what="two restarts of the container", pod="crash"
    )
    # The kubelet keeps the log of the run before.
    text = chain.node.log(chain.pod("crash"), "main")
    assert text.count(f"GPUCLOUD_CLAIM_DIR={first}\n") == text.count("GPUCLOUD_CLAIM_DIR=") >= 2, text
    assert {line["total_bytes"] for line in shares(chain, "crash")} == {GIB}
