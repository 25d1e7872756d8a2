"""/nodes/ and /gpus/."""

from typing import Any

from django.http import HttpRequest
from drf_spectacular.utils import extend_schema
from rest_framework.permissions import AllowAny
from rest_framework.request import Request
from rest_framework.response import Response

from apps.nodes.api import serializers
from apps.nodes.models import Gpu, GpuHealth, Node
from apps.nodes.services import bundle, nodes
from apps.quotas.api.methods import changes, lists, shows
from apps.quotas.api.views import CHANGES, ApiView, ListMixin
from apps.quotas.authentication import source_of
from apps.quotas.idempotency import idempotent
from gpucloud.api import etags
from gpucloud.api.filters import filters_of


def enrolment_command(request: HttpRequest | Request, token: str) -> str:
    """Return the command to copy to the machine."""
    return bundle.command(server=request.build_absolute_uri("/").rstrip("/"), token=token)


class NodeView(ApiView):
    """Base of the node views: every user sees the fleet, operators change it."""

    queryset = Node.objects.select_related("pool").prefetch_related("conditions")
    serializer_class = serializers.NodeSerializer
    lookup_key = "name"
    read_scope, write_scope = "nodes:read", "nodes:write"
    operator_methods = CHANGES

    def with_enrolment(self, node: Node, token: str) -> Response:
        """Return the node with its token, which is shown once."""
        body = {
            **serializers.NodeSerializer(node, context=self.get_serializer_context()).data,
            "enrolment_token": token,
            "command": enrolment_command(self.request, token),
        }
        return Response(body, status=201, headers={"ETag": etags.etag(node.version), "Cache-Control": "no-store"})


class NodeList(NodeView, ListMixin):
    """Nodes: machines with an agent."""

    filterset_class = filters_of(Node, "name", "cordoned", pool="pool__name")
    serializer_classes = {"POST": serializers.NewNodeSerializer}

    get = lists("List nodes.")

    @extend_schema(responses={201: serializers.NodeWithEnrolmentSerializer})
    @idempotent
    def post(self, request: Request) -> Response:
        """Create a node. The response has a one-time enrolment token and the command for the machine."""
        node, token = nodes.create_node(principal=self.principal, **self.parse_body(request))
        return self.with_enrolment(node, token)


class NodeDetail(NodeView):
    """One node."""

    serializer_classes = {"PATCH": serializers.NodeChangeSerializer}

    get = shows("Show a node.")
    patch = changes(nodes.change_node, "node", "Cordon, uncordon, or move an empty node to another pool.")


class NodeEnrolment(NodeView):
    """A node's enrolment."""

    @extend_schema(request=None, responses={201: serializers.NodeWithEnrolmentSerializer})
    @idempotent
    def post(self, request: Request, name: str) -> Response:
        """Create a new one-time token; the agent that enrols with it replaces the present one."""
        self.without_body(request)
        versions = etags.if_match(request)
        node, token = nodes.renew_enrolment(principal=self.principal, node=self.find(name), versions=versions)
        return self.with_enrolment(node, token)


class Enrol(ApiView):
    """Exchange of a one-time token for the agent's permanent key."""

    serializer_class = serializers.EnrolSerializer
    tagged = False
    authentication_classes: list[Any] = []
    permission_classes = [AllowAny]

    @extend_schema(auth=[], responses={200: serializers.EnrolSerializer})
    def post(self, request: Request) -> Response:
        """Enrol an agent. Safe to repeat with the same key: the first response may have been lost."""
        node = nodes.enrol(**self.parse_body(request), source_ip=source_of(request))
        return Response(self.get_serializer(node).data)


class GpuList(ListMixin):
    """GPUs."""

    queryset = Gpu.objects.select_related("node__pool", "health").prefetch_related("conditions")
    serializer_class = serializers.GpuSerializer
    filterset_class = filters_of(
        Gpu, "model", "index", "present", "cordoned", node="node__name", pool="node__pool__name"
    )
    read_scope = "nodes:read"
    get = lists("List GPUs and their allocated share.")


class GpuView(ApiView):
    """Base of the views of one GPU."""

    queryset = Gpu.objects.select_related("node__pool", "health").prefetch_related("conditions")
    serializer_class = serializers.GpuSerializer
    lookup_key = "uuid"
    read_scope, write_scope = "nodes:read", "nodes:write"
    operator_methods = CHANGES


class GpuProcesses(GpuView):
    """The processes on a GPU."""

    serializer_class = serializers.GpuProcessesSerializer  # type: ignore[assignment]

    def get(self, request: Request, uuid: str) -> Response:
        """List the processes on a GPU, with their claims: all to operators, to others those of their own tenants."""
        health = GpuHealth.objects.filter(gpu=self.find(uuid)).first()
        shown = health.processes_for(self.principal) if health else []
        body = {"reported_at": health and health.reported_at, "processes": shown}
        return Response(self.get_serializer(body).data)
