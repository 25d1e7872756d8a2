"""/clusters/join/: enrolment of an agent by its pod's token."""

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.permissions import AllowAny
from rest_framework.request import Request
from rest_framework.response import Response

from apps.clusters.services import joining
from apps.nodes.api.serializers import KEY_DIGEST
from apps.quotas.api.views import ApiView
from apps.quotas.authentication import source_of
from gpucloud.api import shown
from gpucloud.api.serializers import Strict


class JoinSerializer(Strict):
    """Enrolment of an agent that runs in a pod of a cluster."""

    cluster = serializers.CharField(max_length=63, write_only=True, help_text="Name of the cluster in gpucloud.")
    token = serializers.CharField(
        max_length=8192, write_only=True, help_text="Projected token of the pod, for the audience `gpucloud`."
    )
    key_digest = serializers.RegexField(
        KEY_DIGEST, write_only=True, help_text="SHA-256 of the secret that the agent made for itself."
    )
    node_uid = shown.uid(source="uid")
    node_name = shown.text(source="name")


class Join(ApiView):
    """Exchange of a pod's token for the agent's permanent key."""

    serializer_class = JoinSerializer
    tagged = False
    authentication_classes: list[Any] = []
    permission_classes = [AllowAny]

    @extend_schema(auth=[], responses={200: JoinSerializer})
    def post(self, request: Request) -> Response:
        """Enrol an agent that its cluster vouches for. Safe to repeat with the same key."""
        node = joining.join(**self.parse_body(request), source_ip=source_of(request))
        return Response(self.get_serializer(node).data)
