"""The kubelet's gRPC calls to a driver for Dynamic Resource Allocation, by their paths."""

from collections.abc import AsyncIterator
from typing import Any, Protocol

import grpc

from agent import wire
from agent.kubelet.calls import Context
from agent.kubelet.proto import dra_pb2 as dra
from agent.kubelet.proto import drahealth_pb2 as health
from agent.kubelet.proto import pluginregistration_pb2 as registration

DRIVER_SERVICE = "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin"
HEALTH_SERVICE = "v1alpha1.DRAResourceHealth"
REGISTRATION_SERVICE = "pluginregistration.Registration"
PLUGIN_TYPE = "DRAPlugin"
# As the kubelet names them (1.36: DRAPluginService of k8s.io/kubelet/pkg/apis/dra/v1; dra-health's service name). It
# takes the first that can prepare claims.
VERSIONS = ("v1.DRAPlugin", HEALTH_SERVICE)


class Driver(Protocol):
    """The calls that prepare claims."""

    async def prepare(
        self, request: dra.NodePrepareResourcesRequest, context: Context
    ) -> dra.NodePrepareResourcesResponse: ...

    async def unprepare(
        self, request: dra.NodeUnprepareResourcesRequest, context: Context
    ) -> dra.NodeUnprepareResourcesResponse: ...


class HealthSource(Protocol):
    """The call by which the kubelet follows the devices' health."""

    def watch(
        self, request: health.NodeWatchResourcesRequest, context: Context
    ) -> AsyncIterator[health.NodeWatchResourcesResponse]: ...


class Registrar(Protocol):
    """The calls by which the kubelet gets to know the driver."""

    async def info(self, request: registration.InfoRequest, context: Context) -> registration.PluginInfo: ...

    async def note_status(
        self, request: registration.RegistrationStatus, context: Context
    ) -> registration.RegistrationStatusResponse: ...


def driver_handlers(driver: Driver, source: HealthSource) -> tuple[grpc.GenericRpcHandler, ...]:
    """Return the handlers of the driver's own socket."""
    unary, stream = grpc.unary_unary_rpc_method_handler, grpc.unary_stream_rpc_method_handler
    driving: dict[str, Any] = {
        "NodePrepareResources": unary(
            driver.prepare,
            dra.NodePrepareResourcesRequest.FromString,
            dra.NodePrepareResourcesResponse.SerializeToString,
        ),
        "NodeUnprepareResources": unary(
            driver.unprepare,
            dra.NodeUnprepareResourcesRequest.FromString,
            dra.NodeUnprepareResourcesResponse.SerializeToString,
        ),
    }
    watching: dict[str, Any] = {
        "NodeWatchResources": stream(
            source.watch,
            health.NodeWatchResourcesRequest.FromString,
            health.NodeWatchResourcesResponse.SerializeToString,
        )
    }
    return (
        grpc.method_handlers_generic_handler(DRIVER_SERVICE, driving),
        grpc.method_handlers_generic_handler(HEALTH_SERVICE, watching),
    )


def registration_handlers(registrar: Registrar) -> tuple[grpc.GenericRpcHandler, ...]:
    """Return the handlers of the socket that the kubelet's plugin watcher finds."""
    unary = grpc.unary_unary_rpc_method_handler
    methods: dict[str, Any] = {
        "GetInfo": unary(
            registrar.info, registration.InfoRequest.FromString, registration.PluginInfo.SerializeToString
        ),
        "NotifyRegistrationStatus": unary(
            registrar.note_status,
            registration.RegistrationStatus.FromString,
            registration.RegistrationStatusResponse.SerializeToString,
        ),
    }
    return (grpc.method_handlers_generic_handler(REGISTRATION_SERVICE, methods),)


def describe(endpoint: str) -> registration.PluginInfo:
    """Return what the kubelet is told of a driver whose own socket is at `endpoint`."""
    return registration.PluginInfo(
        type=PLUGIN_TYPE, name=wire.DRA_DRIVER, endpoint=endpoint, supported_versions=VERSIONS
    )
