"""Offers of machines with much memory fit into one message to the kubelet."""

import pytest

from agent import wire
from agent.kubelet import devices, plugin

# The kubelet's gRPC takes no larger message.
MOST_BYTES = 4 << 20
GIB = 1 << 30


def offer(resource: str, gpus: int, memory_gib: int) -> devices.Offer:
    there = [
        wire.Gpu(uuid=f"GPU-{index}", index=index, model="NVIDIA", memory_bytes=memory_gib * GIB)
        for index in range(gpus)
    ]
    # Sick ones have the longer word, and the first memory node (NUMA) the shorter message.
    memory_nodes = {gpu.uuid: 1 + gpu.index % 8 for gpu in there}
    return devices.offer(resource, there, [gpu.uuid for gpu in there], memory_nodes)


def message_bytes(made: devices.Offer) -> int:
    return len(plugin.describe_devices(made).SerializeToString())


@pytest.mark.parametrize(("gpus", "memory_gib"), [(8, 80), (16, 288), (100, 192), (128, 288)])
def test_all_devices_of_a_machine_fit_into_a_message(gpus: int, memory_gib: int) -> None:
    made = offer(devices.MEMORY, gpus, memory_gib)
    assert max(message_bytes(made), message_bytes(offer(devices.CORE, gpus, memory_gib))) < MOST_BYTES
    ids = [one for each in made.ids.values() for one in each]
    assert len(set(ids)) == len(ids) == gpus * memory_gib * 4
    assert made.unhealthy == set(ids)


def test_machines_of_today_tell_the_memory_node_of_each_device() -> None:
    made = offer(devices.MEMORY, 16, 288)
    told = {one.ID: [node.ID for node in one.topology.nodes] for one in plugin.describe_devices(made).devices}
    assert told == {one: [1 + index % 8] for index in range(16) for one in made.ids[f"GPU-{index}"]}
    # Beyond a size there is no room for it; cores have it even there.
    assert not offer(devices.MEMORY, 128, 288).memory_nodes
    assert len(offer(devices.CORE, 128, 288).memory_nodes) == 128


def test_a_device_without_a_memory_node_has_no_topology() -> None:
    gpu = wire.Gpu(uuid="GPU-0", index=0, model="NVIDIA", memory_bytes=GIB)
    for nodes, topology in (({}, False), ({"GPU-0": 0}, True), ({"GPU-1": 0}, False)):
        made = devices.offer(devices.CORE, [gpu], (), nodes)
        assert {one.HasField("topology") for one in plugin.describe_devices(made).devices} == {topology}


def test_machines_of_today_keep_gpu_managers_names() -> None:
    """Containers that run have them in the kubelet's checkpoint."""
    made = offer(devices.MEMORY, 16, 288)
    assert made.ids["GPU-0"][0] == "tencent.com/vcuda-memory-268435456-0"
    assert offer(devices.MEMORY, 100, 192).ids["GPU-99"][-1] == "m-76799"
