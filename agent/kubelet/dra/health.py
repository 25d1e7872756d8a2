"""The health of the node's devices, as a stream to the kubelet, which writes it to the pods' status."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable
from typing import NamedTuple

from agent import wire
from agent.kubelet import devices
from agent.kubelet.calls import Context
from agent.kubelet.proto import drahealth_pb2 as pb

LOOK_SECONDS = 1.0
# The kubelet takes a device's health for unknown after so long without news of it; it is its default, too (1.36).
VALID_SECONDS = 30
# Three reports within that time: one may be late.
REPORT_SECONDS = 10.0
# The kubelet cuts longer ones by itself, in the middle of a character.
MOST_MESSAGE = 1024


class DeviceHealth(NamedTuple):
    """The health of one GPU; the message is empty if it is well."""

    device: str
    healthy: bool
    message: str


class HealthStream:
    """The stream of the health of all devices in the pool. `present` returns it as it is now."""

    def __init__(self, pool: str, present: Callable[[], list[DeviceHealth]]) -> None:
        self._pool = pool
        self._present = present

    async def watch(
        self, request: pb.NodeWatchResourcesRequest, context: Context
    ) -> AsyncIterator[pb.NodeWatchResourcesResponse]:
        """Yield all devices now, after each change, and before the kubelet forgets them."""
        sent, due = None, 0.0
        while True:
            present = self._present()
            if present != sent or time.monotonic() >= due:
                yield self._describe(present)
                sent, due = present, time.monotonic() + REPORT_SECONDS
            await asyncio.sleep(LOOK_SECONDS)

    def _describe(self, present: list[DeviceHealth]) -> pb.NodeWatchResourcesResponse:
        at = int(time.time())
        return pb.NodeWatchResourcesResponse(
            devices=[
                pb.DeviceHealth(
                    device=pb.DeviceIdentifier(pool_name=self._pool, device_name=one.device),
                    health=pb.HEALTHY if one.healthy else pb.UNHEALTHY,
                    last_updated_time=at,
                    health_check_timeout_seconds=VALID_SECONDS,
                    message=one.message,
                )
                for one in present
            ]
        )


def device_name(gpu_uuid: str) -> str:
    """Return the GPU's name in the node's ResourceSlices, where names are DNS labels."""
    return gpu_uuid.lower()


def find_health(gpus: Iterable[wire.Gpu], conditions: Iterable[wire.Condition]) -> list[DeviceHealth]:
    """Return the health of each GPU by the conditions that keep new work away, as for the device plugin."""
    known = list(gpus)
    words: dict[str, list[str]] = {gpu.uuid: [] for gpu in known}
    for one in conditions:
        for uuid in devices.unhealthy_gpus(known, [one]):
            words.setdefault(uuid, []).append(one.message or one.reason)
    return [
        DeviceHealth(device_name(gpu.uuid), not words[gpu.uuid], _shorten(" ".join(words[gpu.uuid]))) for gpu in known
    ]


def _shorten(message: str) -> str:
    encoded = message.encode()
    return message if len(encoded) <= MOST_MESSAGE else encoded[: MOST_MESSAGE - 3].decode(errors="ignore") + "..."
