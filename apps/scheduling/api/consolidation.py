"""The view of /pools/{name}/consolidation/: moves of claims, and what they would free."""

from typing import Any

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from apps.quotas.api.views import ApiView
from apps.quotas.models import Pool
from apps.scheduling.core.consolidation import MoveBounds
from apps.scheduling.services.rebalancing.consolidation import ConsolidationPlan, proposals
from gpucloud.api.serializers import Strict


class MoveSerializer(Strict):
    """A move of one claim from its GPUs to others of the pool."""

    claim = serializers.UUIDField(read_only=True)
    claim_name = serializers.CharField(read_only=True)
    tenant = serializers.CharField(read_only=True)
    from_gpus = serializers.ListField(child=serializers.CharField(), read_only=True)
    to_gpus = serializers.ListField(child=serializers.CharField(), read_only=True)
    cost_mib = serializers.IntegerField(read_only=True, help_text="Device memory in use, which would be copied.")
    state = serializers.ChoiceField(choices=["proposed"], read_only=True, help_text="Nothing applies moves yet.")


class PlanSerializer(Strict):
    """Moves in their order, and the GPUs that are free after them."""

    waiting_claim = serializers.UUIDField(
        read_only=True,
        allow_null=True,
        help_text="The waiting claim that could start. Null: no particular one.",
    )
    moves = MoveSerializer(many=True, read_only=True)
    frees = serializers.ListField(
        child=serializers.CharField(), read_only=True, help_text="GPUs that would be wholly free, and are not now."
    )
    cost_mib = serializers.IntegerField(read_only=True)
    explanation = serializers.CharField(read_only=True)


class ConsolidationSerializer(Strict):
    """Plans, each by itself: one that is applied may make the others void."""

    pool = serializers.CharField(read_only=True)
    plans = PlanSerializer(many=True, read_only=True)
    explanation = serializers.CharField(
        read_only=True, allow_null=True, help_text="Why there are no plans; null where there are."
    )


class QuestionSerializer(serializers.Serializer[Any]):
    """The bounds of plans; from a query, so numbers come as text."""

    most_moves = serializers.IntegerField(min_value=1, max_value=32, default=4)
    most_memory_mib = serializers.IntegerField(min_value=1, max_value=1 << 40, default=256 * 1024)


class PoolConsolidation(ApiView):
    """Moves that would free GPUs of a pool: proposals, which nothing applies."""

    serializer_class: Any = ConsolidationSerializer
    queryset = Pool.objects.all()
    lookup_key = "name"
    read_scope = "nodes:read"

    @extend_schema(
        parameters=[
            OpenApiParameter("most_moves", OpenApiTypes.INT, description="Of one plan; 4 unless given, 32 at most."),
            OpenApiParameter("most_memory_mib", OpenApiTypes.INT, description="Of one plan; 262144 unless given."),
        ]
    )
    def get(self, request: Request, name: str) -> Response:
        """Show the moves that would let waiting claims start or free whole GPUs, and their cost (operators)."""
        pool = self.find(name)
        if unknown := set(request.query_params) - {"most_moves", "most_memory_mib"}:
            raise serializers.ValidationError({name: ["Unknown parameter."] for name in sorted(unknown)})
        question = QuestionSerializer(data=request.query_params.dict())
        question.is_valid(raise_exception=True)
        found = proposals(principal=self.principal, pool=pool, bounds=MoveBounds(**question.validated_data))
        plans = [_plan_document(item) for item in found.plans]
        return Response({"pool": pool.name, "plans": plans, "explanation": found.why})


def _plan_document(item: ConsolidationPlan) -> dict[str, Any]:
    plan = item.plan
    return {
        "waiting_claim": item.claim and str(item.claim.uid),
        "moves": [
            {
                "claim": move.claim,
                "claim_name": item.claims[move.claim].name,
                "tenant": item.claims[move.claim].tenant.slug,
                "from_gpus": list(move.from_gpus),
                "to_gpus": list(move.to_gpus),
                "cost_mib": move.cost_mib,
                "state": move.state,
            }
            for move in plan.moves
        ],
        "frees": list(plan.frees),
        "cost_mib": plan.cost_mib,
        "explanation": item.explanation,
    }
