"""Views of /pools/{name}/, with changes that reach its claims, and consolidation/: moves, and what they would free."""

from dataclasses import asdict
from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from apps.quotas.api import pool_serializers
from apps.quotas.api.methods import changes, shows
from apps.quotas.api.views import CHANGES, ApiView
from apps.quotas.models import Pool
from apps.scheduling.core.consolidation import Move, MoveBounds
from apps.scheduling.models import Claim
from apps.scheduling.services.claims.sharing import change_pool
from apps.scheduling.services.rebalancing.consolidation import proposals
from gpucloud.api import shown
from gpucloud.api.serializers import Question, Strict


class PoolDetail(ApiView):
    """One pool."""

    serializer_class: Any = pool_serializers.PoolSerializer
    queryset = Pool.objects.all()
    lookup_key = "name"
    read_scope, write_scope = "nodes:read", "nodes:write"
    operator_methods = CHANGES
    serializer_classes = {"PATCH": pool_serializers.PoolChangeSerializer}

    get = shows("Show a pool.")
    patch = changes(
        change_pool,
        "pool",
        "Change how its GPUs are shared, live: running programs follow within one push to each node.",
    )


class MoveSerializer(Strict):
    """A move of one claim from its GPUs to others of the pool."""

    claim = shown.uid()
    claim_name = shown.text()
    tenant = shown.text()
    from_gpus = shown.texts()
    to_gpus = shown.texts()
    cost_mib = shown.integer("Device memory in use, which would be copied.")
    state = shown.choice(["proposed"], "It is ordered by `consolidation/accept/`.")


class PlanSerializer(Strict):
    """Moves in their order, and the GPUs that are free after them."""

    waiting_claim = shown.uid("The waiting claim that could start. Null: no particular one.", null=True)
    moves = MoveSerializer(many=True, read_only=True)
    frees = shown.texts("GPUs that would be wholly free, and are not now.")
    cost_mib = shown.integer()
    explanation = shown.text()


class ConsolidationSerializer(Strict):
    """Plans, each by itself: one that is applied may make the others void."""

    pool = shown.text()
    plans = PlanSerializer(many=True, read_only=True)
    explanation = shown.text("Why there are no plans; null where there are.", null=True)


class PlanQuestion(Question):
    """The bounds of plans."""

    most_moves = serializers.IntegerField(
        min_value=1, max_value=32, default=4, help_text="Of one plan; 4 unless given, 32 at most."
    )
    most_memory_mib = serializers.IntegerField(
        min_value=1, max_value=1 << 40, default=256 * 1024, help_text="Of one plan; 262144 unless given."
    )


class PoolConsolidation(ApiView):
    """Moves that would free GPUs of a pool: proposals."""

    serializer_class: Any = ConsolidationSerializer
    queryset = Pool.objects.all()
    lookup_key = "name"
    read_scope = "nodes:read"

    @extend_schema(parameters=PlanQuestion.parameters())
    def get(self, request: Request, name: str) -> Response:
        """Show the moves that would let waiting claims start or free whole GPUs, and their cost (operators)."""
        pool = self.find(name)
        bounds = MoveBounds(**PlanQuestion.read(request))
        found = proposals(principal=self.principal, pool=pool, bounds=bounds)
        plans = [
            {
                "waiting_claim": item.claim and item.claim.uid,
                "moves": [_move_document(move, item.claims[move.claim]) for move in item.plan.moves],
                "frees": item.plan.frees,
                "cost_mib": item.plan.cost_mib,
                "explanation": item.explanation,
            }
            for item in found.plans
        ]
        body = {"pool": pool.name, "plans": plans, "explanation": found.why}
        return Response(ConsolidationSerializer(body).data)


def _move_document(move: Move, claim: Claim) -> dict[str, Any]:
    return {**asdict(move), "claim_name": claim.name, "tenant": claim.tenant.slug}
