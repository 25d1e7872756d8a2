"""View of /pools/{name}/consolidation/accept/."""

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from apps.quotas.api.views import ApiView
from apps.quotas.idempotency import idempotent
from apps.quotas.models import Pool
from apps.suspension.consolidating import accept_moves
from gpucloud.api import shown
from gpucloud.api.serializers import Strict


class WantedMoveSerializer(Strict):
    """A move of a plan: a claim, and all GPUs on which it is to be."""

    claim = serializers.UUIDField(help_text="The claim's uid.")
    to_gpus = serializers.ListField(
        child=serializers.CharField(max_length=64), min_length=1, max_length=16, help_text="As in the plan."
    )


class WantedMovesSerializer(Strict):
    """The moves of a plan that are accepted."""

    moves = serializers.ListField(
        child=WantedMoveSerializer(), min_length=1, max_length=32, help_text="In the plan's order."
    )


class AcceptedMoveSerializer(Strict):
    """A move that was accepted, and its outcome."""

    claim = shown.uid()
    to_gpus = shown.texts()
    state = shown.choice(["moving", "refused"])
    refusal = shown.text("Why it is refused; null: it is ordered.", null=True)


class AcceptedMovesSerializer(Strict):
    """The accepted moves, in their order."""

    pool = shown.text()
    moves = AcceptedMoveSerializer(many=True, read_only=True)


class ConsolidationAccept(ApiView):
    """Acceptance of moves."""

    serializer_class: Any = WantedMovesSerializer
    queryset = Pool.objects.all()
    lookup_key = "name"
    read_scope, write_scope = "nodes:read", "nodes:write"
    operator_methods = frozenset({"POST"})
    tagged = False

    @extend_schema(request=WantedMovesSerializer, responses=AcceptedMovesSerializer)
    @idempotent
    def post(self, request: Request, name: str) -> Response:
        """Order moves of a plan (operators). Each is ordered or refused by itself; only those within a node can be."""
        pool = self.find(name)
        moves = [(item["claim"], item["to_gpus"]) for item in self.parse_body(request)["moves"]]
        found = accept_moves(principal=self.principal, pool=pool, moves=moves)
        return Response(AcceptedMovesSerializer({"pool": pool.name, "moves": found}).data)
