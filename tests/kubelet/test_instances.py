"""MIG instances for pods on a real kubelet: by NVIDIA's resource, which is an extended resource of a DeviceClass."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kubelet.chain import Chain, container, started
from tests.kubelet.reading import environment, shares

pytestmark = [pytest.mark.kubelet, pytest.mark.timeout(900)]
CLASS = "/apis/resource.k8s.io/v1/deviceclasses/mig-1g.5gb.gpucloud.io"
RESOURCES = ("nvidia.com/mig-1g.5gb", "deviceclass.resource.kubernetes.io/mig-1g.5gb.gpucloud.io")
MEMORY_MIB = 4864


@pytest.fixture(scope="module")
def divided(kubelet: None) -> Iterator[Chain]:
    """Start a node of two GPUs, the first of them in MIG mode, in a cluster where our classes serve NVIDIA's words."""
    shape = ("--gpus", "2", "--model", "NVIDIA A100-SXM4-40GB", "--mig", "0")
    with (
        tempfile.TemporaryDirectory(prefix="gpucloud-kubelet-") as directory,
        started(Path(directory), shape=shape, shared=1, ADMISSION_MIG="serve") as it,
    ):
        it.wait(lambda: it.client.find(CLASS) is not None, what="the DeviceClass of the profile")
        yield it
        it.delete_all()


@pytest.mark.parametrize("resource", RESOURCES)
def test_a_pod_gets_an_instance_by_an_extended_resource_and_leaves_none(divided: Chain, resource: str) -> None:
    command = ("gpuload", "--json", "--interval", "0.2", "--memory", "1GiB")
    divided.create_pod(
        {
            "metadata": {"name": "train"},
            "spec": {"containers": [container("main", *command, limits={resource: "1"})]},
        }
    )
    divided.running("train")
    [claim] = divided.server.claims()
    assert (claim["profile"], claim["core_request"], claim["memory_mib"]) == ("1g.5gb", 14, MEMORY_MIB)
    divided.wait(lambda: shares(divided, "train"), what="kernels in the instance", pod="train")
    assert {line["total_bytes"] for line in shares(divided, "train")} == {MEMORY_MIB << 20}
    assert environment(divided, "train")["CUDA_VISIBLE_DEVICES"].startswith("MIG-")
    divided.delete("train")
    divided.wait(lambda: not divided.server.claims(), what="the claim to be released")
    assert not list(divided.node.cdi_directory.glob("*.json"))
