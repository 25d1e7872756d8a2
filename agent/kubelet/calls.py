"""The kubelet's gRPC calls by their paths: those that the plugin answers, and those that it makes.

In the event loop (`grpc.aio`): no call waits for a thread, and none blocks one.
"""

import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Protocol, TypeVar

# Before the first import: the agent's children exec at once, and the library's own fork support only warns of them.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

import grpc
from google.protobuf.message import Message
from grpc import aio

from agent.kubelet.proto import deviceplugin_pb2 as plugin
from agent.kubelet.proto import podresources_pb2 as resources

VERSION = "v1beta1"
CALL_SECONDS = 5.0
# The kubelet's own bound for the list of its pods.
MOST_LIST_BYTES = 16 << 20
# As many containers may wait for their claims as a node has pods, and none must keep the kubelet from asking more.
MOST_CALLS = 1024
CHANNEL = [
    # The default would be the socket's path, with characters that some servers refuse.
    ("grpc.default_authority", "localhost"),
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_receive_message_length", MOST_LIST_BYTES),
]
Context = aio.ServicerContext[Any, Any]
Answer = TypeVar("Answer", bound=Message)


class Unreachable(Exception):
    """Failure of the kubelet to answer; the message says how."""


class DevicePlugin(Protocol):
    """The calls that a plugin answers."""

    async def options(self, request: plugin.Empty, context: Context) -> plugin.DevicePluginOptions: ...

    def list_and_watch(self, request: plugin.Empty, context: Context) -> AsyncIterator[plugin.ListAndWatchResponse]: ...

    async def prefer(
        self, request: plugin.PreferredAllocationRequest, context: Context
    ) -> plugin.PreferredAllocationResponse: ...

    async def allocate(self, request: plugin.AllocateRequest, context: Context) -> plugin.AllocateResponse: ...

    async def pre_start(
        self, request: plugin.PreStartContainerRequest, context: Context
    ) -> plugin.PreStartContainerResponse: ...


async def serve(path: Path, handlers: tuple[grpc.GenericRpcHandler, ...]) -> aio.Server:
    """Start a server at this socket, which does not exist yet. Raises OSError."""
    server = aio.server(maximum_concurrent_rpcs=MOST_CALLS)
    server.add_generic_rpc_handlers(handlers)
    try:
        server.add_insecure_port(f"unix:{path}")
    except RuntimeError as error:
        raise OSError(f"{path}: {error}") from error
    await server.start()
    return server


async def register(kubelet: Path, request: plugin.RegisterRequest) -> None:
    """Register a plugin with the kubelet. Raises Unreachable."""
    await _call(kubelet, "/v1beta1.Registration/Register", request, plugin.Empty)


async def list_pods(socket: Path) -> resources.ListPodResourcesResponse:
    """Return all pods of the kubelet with their devices. Raises Unreachable."""
    request = resources.ListPodResourcesRequest()
    return await _call(socket, "/v1.PodResourcesLister/List", request, resources.ListPodResourcesResponse)


async def _call(socket: Path, method: str, request: Message, answer: type[Answer]) -> Answer:
    try:
        async with aio.insecure_channel(f"unix:{socket}", options=CHANNEL) as channel:
            call = channel.unary_unary(
                method, request_serializer=type(request).SerializeToString, response_deserializer=answer.FromString
            )
            reply: Answer = await call(request, timeout=CALL_SECONDS)
            return reply
    except aio.AioRpcError as error:
        raise Unreachable(f"{socket}: {error.details()}") from error


def plugin_handlers(service: DevicePlugin) -> tuple[grpc.GenericRpcHandler, ...]:
    """Return the handlers of a device plugin's socket."""
    unary, stream = grpc.unary_unary_rpc_method_handler, grpc.unary_stream_rpc_method_handler
    methods: dict[str, Any] = {
        "GetDevicePluginOptions": unary(
            service.options, plugin.Empty.FromString, plugin.DevicePluginOptions.SerializeToString
        ),
        "ListAndWatch": stream(
            service.list_and_watch, plugin.Empty.FromString, plugin.ListAndWatchResponse.SerializeToString
        ),
        "GetPreferredAllocation": unary(
            service.prefer,
            plugin.PreferredAllocationRequest.FromString,
            plugin.PreferredAllocationResponse.SerializeToString,
        ),
        "Allocate": unary(
            service.allocate, plugin.AllocateRequest.FromString, plugin.AllocateResponse.SerializeToString
        ),
        "PreStartContainer": unary(
            service.pre_start,
            plugin.PreStartContainerRequest.FromString,
            plugin.PreStartContainerResponse.SerializeToString,
        ),
    }
    return (grpc.method_handlers_generic_handler(f"{VERSION}.DevicePlugin", methods),)
