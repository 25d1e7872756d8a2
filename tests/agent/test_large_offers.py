"""Offers of machines with much memory fit into one message to the kubelet."""

import pytest

from agent import wire
from agent.kubelet import devices
from agent.kubelet.proto import deviceplugin_pb2 as pb

# The kubelet's gRPC takes no larger message.
MOST_BYTES = 4 << 20
GIB = 1 << 30


def offer(resource: str, gpus: int, memory_gib: int) -> devices.Offer:
    there = [
        wire.Gpu(uuid=f"GPU-{index}", index=index, model="NVIDIA", memory_bytes=memory_gib * GIB)
        for index in range(gpus)
    ]
    # Sick ones have the longer word.
    return devices.offer(resource, there, [gpu.uuid for gpu in there])


def message_bytes(made: devices.Offer) -> int:
    ids = [one for each in made.ids.values() for one in each]
    answer = pb.ListAndWatchResponse(devices=[pb.Device(ID=one, health="Unhealthy") for one in ids])
    return len(answer.SerializeToString())


@pytest.mark.parametrize(("gpus", "memory_gib"), [(8, 80), (16, 288), (100, 192), (128, 288)])
def test_all_devices_of_a_machine_fit_into_a_message(gpus: int, memory_gib: int) -> None:
    made = offer(devices.MEMORY, gpus, memory_gib)
    assert max(message_bytes(made), message_bytes(offer(devices.CORE, gpus, memory_gib))) < MOST_BYTES
    ids = [one for each in made.ids.values() for one in each]
    assert len(set(ids)) == len(ids) == gpus * memory_gib * 4
    assert made.unhealthy == set(ids)


def test_machines_of_today_keep_gpu_managers_names() -> None:
    """Containers that run have them in the kubelet's checkpoint."""
    made = offer(devices.MEMORY, 16, 288)
    assert made.ids["GPU-0"][0] == "tencent.com/vcuda-memory-268435456-0"
    assert offer(devices.MEMORY, 100, 192).ids["GPU-99"][-1] == "m-76799"
