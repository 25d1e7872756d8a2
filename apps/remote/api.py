"""/claims/UID/remote/: the way of a program on another machine to a claim's GPUs."""

from typing import Any

import msgspec
from django.urls import path
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from apps.remote import figures
from apps.remote.tickets import open_remote
from apps.scheduling.api.claims import ClaimView
from gpucloud.api import etags
from gpucloud.api.serializers import Strict


class RemoteKeySerializer(Strict):
    """The client's key, by its digest."""

    key_sha256 = serializers.RegexField(
        r"^[0-9a-f]{64}\Z", help_text="SHA-256 of a key of the client's own choice, which it shows to the node only."
    )


class RemotePlaceSerializer(serializers.Serializer[Any]):
    """The address of a claim's node, and a ticket for it."""

    claim = serializers.UUIDField(read_only=True)
    node = serializers.CharField(read_only=True)
    host = serializers.CharField(read_only=True)
    port = serializers.IntegerField(read_only=True)
    fingerprint = serializers.CharField(read_only=True, help_text="SHA-256 of the node's certificate.")
    component = serializers.CharField(read_only=True, help_text="The remoting component whose client is needed.")
    build = serializers.CharField(read_only=True, help_text="First digits of the SHA-256 of the component's server.")
    ticket = serializers.CharField(read_only=True, help_text="Opens one session; shown once.")
    expires_in_seconds = serializers.IntegerField(read_only=True)


class RemoteUseSerializer(serializers.Serializer[Any]):
    """The network use of a claim by its clients on other machines; all null: it has none now."""

    connections = serializers.IntegerField(read_only=True, allow_null=True)
    received_bytes = serializers.IntegerField(read_only=True, allow_null=True, help_text="From the clients.")
    sent_bytes = serializers.IntegerField(read_only=True, allow_null=True, help_text="To the clients.")
    round_trips = serializers.IntegerField(
        read_only=True, allow_null=True, help_text="Requests that waited for an answer, about."
    )
    received_bytes_per_second = serializers.FloatField(read_only=True, allow_null=True)
    sent_bytes_per_second = serializers.FloatField(read_only=True, allow_null=True)
    round_trips_per_second = serializers.FloatField(read_only=True, allow_null=True)
    trip_ms = serializers.FloatField(
        read_only=True, allow_null=True, help_text="Between node and client, there and back."
    )


class ClaimRemote(ClaimView):
    """Tickets for a claim, and what its clients use."""

    serializer_class: Any = RemoteKeySerializer

    @extend_schema(responses={200: RemoteUseSerializer})
    def get(self, request: Request, uid: str) -> Response:
        """Show what the claim's clients on other machines move now. Sums are those since the node's endpoint began."""
        used = figures.read(self.named(uid).uid)
        facts = dict.fromkeys(RemoteUseSerializer().fields) if used is None else msgspec.structs.asdict(used)
        return Response(RemoteUseSerializer(facts).data, headers={"Cache-Control": "no-store"})

    @extend_schema(request=RemoteKeySerializer, responses={200: RemotePlaceSerializer})
    def post(self, request: Request, uid: str) -> Response:
        """Let one client use the claim from another machine. The ticket is good for one session of that client."""
        key_digest, claim = self.parse_body(request)["key_sha256"], self.named(uid)
        etags.check(claim.version, etags.if_match(request))
        place = open_remote(principal=self.principal, claim=claim, key_digest=key_digest)
        return Response(RemotePlaceSerializer(place._asdict()).data, headers={"Cache-Control": "no-store"})


urlpatterns = [path("claims/<uuid:uid>/remote/", ClaimRemote.as_view())]
