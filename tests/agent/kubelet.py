"""A small kubelet's device manager over real Unix sockets: its calls, their order, and its records.

As in the real one: device ids are picked from a set, in no order; resources are requested one after the other; the
owner of devices is recorded after `Allocate` has answered; `PreStartContainer` comes before each start of a container;
and a kubelet that starts removes every socket beside its own.
"""

import asyncio
import json
import random
from pathlib import Path
from typing import Any, NamedTuple

import grpc
from grpc import aio

from agent.kubelet.devices import CORE, MEMORY
from agent.kubelet.proto import deviceplugin_pb2 as pb
from agent.kubelet.proto import podresources_pb2 as resources
from tests.agent import cdi_rules
from tests.agent.cdi_rules import Edits
from tests.agent.stage import eventually


class Container(NamedTuple):
    """A pod's container, with its requests."""

    pod: str
    core: int
    # In units of 256 MiB.
    blocks: int
    name: str = "cuda"
    namespace: str = "vision"
    uid: str = ""

    @property
    def wants(self) -> dict[str, int]:
        """Return requests in no order, as from the kubelet's maps."""
        wants = [(CORE, self.core), (MEMORY, self.blocks)]
        return dict(random.sample([one for one in wants if one[1]], len([one for one in wants if one[1]])))


class Plugin:
    """A registered plugin."""

    def __init__(self, path: Path) -> None:
        self.channel = aio.insecure_channel(f"unix:{path}")
        self.devices: dict[str, str] = {}
        self.updates = 0
        self.watch: asyncio.Task[None] | None = None

    async def call(self, method: str, request: Any, answer: Any, *, seconds: float = 30.0) -> Any:
        call: Any = self.channel.unary_unary(
            f"/v1beta1.DevicePlugin/{method}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=answer.FromString,
        )
        return await call(request, timeout=seconds, wait_for_ready=True)

    async def follow(self) -> None:
        call = self.channel.unary_stream(
            "/v1beta1.DevicePlugin/ListAndWatch",
            request_serializer=pb.Empty.SerializeToString,
            response_deserializer=pb.ListAndWatchResponse.FromString,
        )
        try:
            async for answer in call(pb.Empty()):
                self.devices = {one.ID: one.health for one in answer.devices}
                self.updates += 1
        except aio.AioRpcError:
            # The plugin is gone: its devices are unavailable until it registers again.
            self.devices = dict.fromkeys(self.devices, "Unhealthy")


class Kubelet:
    """A kubelet whose sockets are below `root`: `device-plugins/kubelet.sock`, `pod-resources/kubelet.sock`."""

    def __init__(self, root: Path) -> None:
        self.directory = root / "device-plugins"
        self.pod_resources = root / "pod-resources" / "kubelet.sock"
        self.registrations: list[pb.RegisterRequest] = []
        self.plugins: dict[str, Plugin] = {}
        # Its records; a restart keeps them.
        self.given: dict[tuple[Container, str], set[str]] = {}
        self.taken: dict[str, set[str]] = {CORE: set(), MEMORY: set()}
        self._picking = asyncio.Lock()
        self.answers: dict[Container, pb.ContainerAllocateResponse] = {}
        self._servers: list[aio.Server] = []
        for directory in (self.directory, self.pod_resources.parent):
            directory.mkdir(parents=True)

    @property
    def settings(self) -> dict[str, Any]:
        return {
            "GPUCLOUD_KUBELET_DIR": str(self.directory),
            "GPUCLOUD_POD_RESOURCES": str(self.pod_resources),
            "GPUCLOUD_KUBERNETES_NODE": "10.0.200.4",
            "GPUCLOUD_METRICS": "off",
        }

    async def start(self) -> None:
        for path in self.directory.iterdir():
            path.unlink()
        register = grpc.unary_unary_rpc_method_handler(
            self._register, pb.RegisterRequest.FromString, pb.Empty.SerializeToString
        )
        listing: Any = grpc.unary_unary_rpc_method_handler(
            self._list, resources.ListPodResourcesRequest.FromString, lambda message: message.SerializeToString()
        )
        for path, service, handlers in (
            (self.pod_resources, "v1.PodResourcesLister", {"List": listing}),
            (self.directory / "kubelet.sock", "v1beta1.Registration", {"Register": register}),
        ):
            self._servers.append(aio.server())
            self._servers[-1].add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
            self._servers[-1].add_insecure_port(f"unix:{path}")
            await self._servers[-1].start()

    async def stop(self) -> None:
        for plugin in self.plugins.values():
            if plugin.watch is not None:
                plugin.watch.cancel()
                await asyncio.gather(plugin.watch, return_exceptions=True)
            await plugin.channel.close()
        self.plugins = {}
        while self._servers:
            # Not stored under a name: a server schedules its end when its last reference goes, which needs the loop.
            await self._servers.pop().stop(0)

    async def _register(self, request: pb.RegisterRequest, context: Any) -> pb.Empty:
        self.registrations.append(request)
        plugin = Plugin(self.directory / request.endpoint)
        options = await plugin.call("GetDevicePluginOptions", pb.Empty(), pb.DevicePluginOptions)
        assert options == request.options
        if old := self.plugins.get(request.resource_name):
            assert old.watch is not None
            old.watch.cancel()
            await old.channel.close()
        self.plugins[request.resource_name] = plugin
        plugin.watch = asyncio.ensure_future(plugin.follow())
        return pb.Empty()

    async def _list(self, request: Any, context: Any) -> resources.ListPodResourcesResponse:
        answer = resources.ListPodResourcesResponse()
        # In no order, each resource in two parts: as on a machine with two memory nodes.
        noted = list(self.given.items())
        random.shuffle(noted)
        for (one, resource), ids in noted:
            pod = answer.pod_resources.add(name=one.pod, namespace=one.namespace)
            devices = pod.containers.add(name=one.name).devices
            parts = sorted(ids)
            for part in (parts[::2], parts[1::2]):
                if part:
                    devices.add(resource_name=resource, device_ids=part)
        return answer

    def free(self, resource: str) -> list[str]:
        devices = self.plugins[resource].devices
        free = [one for one, health in devices.items() if health == "Healthy" and one not in self.taken[resource]]
        random.shuffle(free)
        return free

    async def admit(self, one: Container) -> pb.ContainerAllocateResponse:
        """Admit the pod: allocate devices of each resource, then record their owner."""
        picked: dict[str, set[str]] = {}
        merged = pb.ContainerAllocateResponse()
        for resource, size in one.wants.items():
            async with self._picking:
                ids = await self._picked(resource, size)
                self.taken[resource].update(ids)
            request = pb.AllocateRequest(container_requests=[pb.ContainerAllocateRequest(devices_ids=ids)])
            answer = await self.plugins[resource].call("Allocate", request, pb.AllocateResponse)
            [given] = answer.container_responses
            merged.MergeFrom(given)
            picked[resource] = set(ids)
        for resource, noted in picked.items():
            self.given[one, resource] = noted
        self._note()
        self.answers[one] = merged
        return merged

    def _note(self) -> None:
        """Write the checkpoint as its device manager does, ids by memory node; a checksum follows that nobody else
        reads.
        """
        entries = [
            {
                "PodUID": one.uid, "ContainerName": one.name, "ResourceName": resource, "AllocResp": "",
                "DeviceIDs": {"0": sorted(ids)[::2], "1": sorted(ids)[1::2]},
            }
            for (one, resource), ids in self.given.items()
            if one.uid
        ]  # fmt: skip
        text = json.dumps({"Data": {"PodDeviceEntries": entries, "RegisteredDevices": {}}, "Checksum": 1})
        (self.directory / "kubelet_internal_checkpoint").write_text(text)

    async def _picked(self, resource: str, size: int) -> list[str]:
        free = self.free(resource)
        request = pb.PreferredAllocationRequest(
            container_requests=[pb.ContainerPreferredAllocationRequest(available_deviceIDs=free, allocation_size=size)]
        )
        answer = await self.plugins[resource].call("GetPreferredAllocation", request, pb.PreferredAllocationResponse)
        [chosen] = answer.container_responses
        ids = list(chosen.deviceIDs)
        assert len(set(ids)) == size
        assert set(ids) <= set(free)
        random.shuffle(ids)
        return ids

    async def knows_both(self) -> None:
        """Wait until both plugins have said which devices there are."""
        await eventually(lambda: len(self.plugins) == 2 and all(one.devices for one in self.plugins.values()))

    async def start_container(self, one: Container, cdi_dir: Path, *, seconds: float = 30.0) -> Edits:
        """Return the runtime's additions to a new container."""
        for resource in one.wants:
            ids = list(self.given[one, resource])
            random.shuffle(ids)
            request = pb.PreStartContainerRequest(devices_ids=ids)
            await self.plugins[resource].call(
                "PreStartContainer", request, pb.PreStartContainerResponse, seconds=seconds
            )
        [device] = self.answers[one].cdi_devices
        return resolve(device.name, cdi_dir)

    def end(self, one: Container) -> None:
        """End the pod: its devices are free."""
        for resource in one.wants:
            self.taken[resource] -= self.given.pop((one, resource))
        del self.answers[one]


def resolve(device: str, cdi_dir: Path) -> Edits:
    """Return the edits of a CDI device from the directory of specs; exactly one spec has it."""
    kind, _, name = device.partition("=")
    specs = [cdi_rules.check(path.read_bytes()) for path in sorted(cdi_dir.glob("*.json"))]
    [edits] = [one.container_edits for spec in specs if spec.kind == kind for one in spec.devices if one.name == name]
    return edits


def claim_of(edits: Edits) -> str:
    """Return the claim that limits a container with these edits."""
    variables = dict(one.split("=", 1) for one in edits.env)
    return Path(variables["GPUCLOUD_CLAIM_DIR"]).name
