"""The devices that the plugin has the kubelet take: those of the chosen GPU, so that its health is the pod's."""

import asyncio

import pytest

from agent.kubelet.devices import CORE, MEMORY
from tests.agent.control import Connection
from tests.agent.kubelet import Container, Kubelet
from tests.agent.stage import Stage
from tests.agent.test_kubelet import BLOCKS, place
from tests.agent.test_reconcile import put


def gpus(kubelet: Kubelet, one: Container) -> dict[str, set[int]]:
    """Return the GPUs whose devices the container has, by resource."""
    of_a_gpu = {CORE: 100, MEMORY: BLOCKS}
    return {
        resource: {int(device.rpartition("-")[2]) // size for device in kubelet.given[one, resource]}
        for resource, size in of_a_gpu.items()
    }


async def test_the_kubelet_is_told_to_take_ids_of_the_gpu_that_was_chosen(
    plugin: Connection, kubelet: Kubelet, stage: Stage
) -> None:
    one = Container("web-0", core=40, blocks=10)
    await put(plugin, 1, place(stage, one, gpu=3))
    await kubelet.admit(one)
    assert gpus(kubelet, one) == {CORE: {3}, MEMORY: {3}}
    # No claim has so many: those of the GPU that is in use already, so that whole ones stay whole.
    other = Container("web-1", core=10, blocks=1)
    await kubelet.admit(other)
    assert gpus(kubelet, other)[CORE] == {3}


async def test_ids_are_of_the_gpu_of_a_claim_that_comes_after_the_pod(
    plugin: Connection, kubelet: Kubelet, stage: Stage
) -> None:
    """A kubelet admits a pod when it is bound, which is before the claim was recorded and sent to the agent."""
    one = Container("web-0", core=40, blocks=10)
    admission = asyncio.ensure_future(kubelet.admit(one))
    await asyncio.sleep(0.1)
    await put(plugin, 1, place(stage, one, gpu=3))
    await admission
    assert gpus(kubelet, one) == {CORE: {3}, MEMORY: {3}}


@pytest.mark.parametrize("killed", [False, True], ids=["", "killed"])
async def test_a_container_that_has_devices_waits_for_none(
    plugin: Connection, kubelet: Kubelet, stage: Stage, killed: bool
) -> None:
    first, second = (Container(name, core=40, blocks=10) for name in ("web-0", "web-1"))
    wanted = [place(stage, first, gpu=1), place(stage, second, gpu=3)]
    await put(plugin, 1, wanted[0])
    await kubelet.admit(first)
    link = plugin
    if killed:
        await stage.kill()
        kubelet.plugins.clear()
        stage.start(**kubelet.settings)
        link = await stage.control.connection()
        await kubelet.knows_both()
    await put(link, 2, *wanted)
    await kubelet.admit(second)
    assert gpus(kubelet, second) == {CORE: {3}, MEMORY: {3}}
