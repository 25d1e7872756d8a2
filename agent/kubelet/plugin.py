"""One resource's device plugin: its answers to the kubelet.

Requests are checked as if anybody could have sent them: ids that are not offered, duplicates, or none at all are
refused and change nothing.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Collection

import grpc

from agent import wire
from agent.kubelet import calls, devices
from agent.kubelet.calls import Context
from agent.kubelet.devices import CORE, Offer
from agent.kubelet.pods import NotAdmitted, Pods, device_name
from agent.kubelet.proto import deviceplugin_pb2 as pb
from agent.logs import log

OPTIONS = pb.DevicePluginOptions(pre_start_required=True, get_preferred_allocation_available=True)
# A claim arrives a tenth of a second after its pod is bound, on two busy cores in four tenths. The kubelet admits no
# other pod meanwhile, and a pod of another scheduler waits in vain, for each resource.
WISH_SECONDS, LOOK_SECONDS = 0.5, 0.02
# NVIDIA's container runtime gives every GPU to an image that asks for all of them; with this value, none. The claim's
# CDI device overrides it if the runtime knows CDI; if not, the container has no GPU.
NO_GPU = {"NVIDIA_VISIBLE_DEVICES": "void"}
# Read by runtimes that are older than the field for it; those that read both take the same device once.
CDI_ANNOTATION = "cdi.k8s.io/gpucloud"


class Plugin(calls.DevicePlugin):
    """The plugin of `resource`. `offered` is the present offer; `update()` replaces it."""

    def __init__(
        self, resource: str, pods: Pods, *, offered: Offer, assignments: Callable[[], Collection[wire.Assignment]]
    ) -> None:
        self.resource = resource
        self._pods = pods
        self._offered = offered
        self._assignments = assignments
        self._news = asyncio.Event()

    def update(self, offered: Offer) -> None:
        """Send the offer to the kubelet if it differs from the last one."""
        if offered != self._offered:
            self._offered = offered
            self._news.set()
            self._news = asyncio.Event()

    async def options(self, request: pb.Empty, context: Context) -> pb.DevicePluginOptions:
        return OPTIONS

    async def list_and_watch(self, request: pb.Empty, context: Context) -> AsyncIterator[pb.ListAndWatchResponse]:
        """Yield all devices now, and all again after each change."""
        while True:
            news = self._news
            yield describe_devices(self._offered)
            await news.wait()

    async def prefer(self, request: pb.PreferredAllocationRequest, context: Context) -> pb.PreferredAllocationResponse:
        """Return the free ids that the kubelet should take."""
        answer = pb.PreferredAllocationResponse()
        for one in request.container_requests:
            available, required = set(one.available_deviceIDs), list(one.must_include_deviceIDs)
            if not len(required) <= one.allocation_size <= len(available | set(required)):
                await _refuse(context, f"{one.allocation_size} of {len(available)} devices cannot be had")
            await self._check(available | set(required), context)
            wished = await self._find_wishes(one.allocation_size)
            chosen = devices.choose_ids(
                self._offered.ids, wished, available=available, required=required, size=one.allocation_size
            )
            answer.container_responses.add(deviceIDs=chosen)
        return answer

    async def allocate(self, request: pb.AllocateRequest, context: Context) -> pb.AllocateResponse:
        """Return the container's CDI device; it becomes valid when the container starts."""
        answer = pb.AllocateResponse()
        for one in request.container_requests:
            await self._check(one.devices_ids, context)
            given = answer.container_responses.add(envs=NO_GPU)
            if self.resource == CORE:
                # Memory alone is no GPU: it gives the container nothing.
                name = f"{wire.CDI_KIND}={device_name(one.devices_ids)}"
                given.cdi_devices.add(name=name)
                given.annotations[CDI_ANNOTATION] = name
        return answer

    async def pre_start(self, request: pb.PreStartContainerRequest, context: Context) -> pb.PreStartContainerResponse:
        """Let the container in before it is created: its claim must be in force by now."""
        await self._check(request.devices_ids, context)
        if self.resource == CORE:
            try:
                await self._pods.let_in(request.devices_ids, within_seconds=context.time_remaining())
            except NotAdmitted as error:
                log.warning("container-not-admitted", reason=str(error))
                await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        return pb.PreStartContainerResponse()

    async def _find_wishes(self, size: int) -> list[devices.Wish]:
        """Return the containers that wait for devices; wait a moment for one of this size.

        The kubelet admits a pod as soon as it is bound, and its claim is recorded and sent at the same time.
        """
        if len(self._offered.ids) < 2:
            return []
        have = await self._pods.find_owners(self.resource)
        end = time.monotonic() + WISH_SECONDS
        while True:
            wished = devices.wishes(self.resource, self._assignments(), have)
            if time.monotonic() >= end or any(one.size == size for one in wished):
                return wished
            await asyncio.sleep(LOOK_SECONDS)

    async def _check(self, ids: Collection[str], context: Context) -> None:
        offered = {one for each in self._offered.ids.values() for one in each}
        if not ids:
            await _refuse(context, "no devices are named")
        if len(set(ids)) != len(ids):
            await _refuse(context, "a device is named twice")
        if strange := set(ids) - offered:
            await _refuse(context, f"{min(strange)[:63]} is no device of {self.resource} on this node")


def describe_devices(offered: Offer) -> pb.ListAndWatchResponse:
    """Return the message that offers all devices to the kubelet."""
    topology = {gpu: pb.TopologyInfo(nodes=[pb.NUMANode(ID=node)]) for gpu, node in offered.memory_nodes.items()}
    return pb.ListAndWatchResponse(
        devices=[
            pb.Device(
                ID=one,
                health="Unhealthy" if one in offered.unhealthy else "Healthy",
                topology=topology.get(gpu),
            )
            for gpu, ids in offered.ids.items()
            for one in ids
        ]
    )


async def _refuse(context: Context, words: str) -> None:
    await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"gpucloud: {words}.")
