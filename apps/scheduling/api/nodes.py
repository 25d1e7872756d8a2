"""/nodes/{name}/forget/, drain/, drift/ and repair/: of nodes, but about their claims."""

from typing import Any

from drf_spectacular.utils import PolymorphicProxySerializer, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from apps.nodes.api.serializers import DriftSerializer, NodeSerializer
from apps.nodes.api.views import NodeView
from apps.quotas.idempotency import idempotent
from apps.scheduling.api.claims import DRY_RUN, dry_run
from apps.scheduling.api.serializers import ReasonSerializer
from apps.scheduling.models import Assignment, AssignmentState
from apps.scheduling.services.claims.drift import repair_node
from apps.scheduling.services.reclaiming.draining import drain_node, plan
from apps.scheduling.services.reclaiming.forgetting import forget_node
from gpucloud.api import etags
from gpucloud.api.serializers import Strict, StrictInteger


class NodeForget(NodeView):
    """A node that will not come back."""

    @extend_schema(request=None)
    @idempotent
    def post(self, request: Request, name: str) -> Response:
        """Release everything that a lost node carries, and shut its agent out until it is enrolled anew."""
        self.without_body(request)
        versions = etags.if_match(request)
        return self.answer(forget_node(principal=self.principal, node=self.find(name), versions=versions))


class DrainSerializer(Strict):
    """How a node is to be emptied."""

    grace_seconds = StrictInteger(
        min_value=0,
        max_value=7 * 86_400,
        allow_null=True,
        default=None,
        help_text="What claims have after they are told. Null: as the pool has it, or 30.",
    )


class LeavingSerializer(Strict):
    """A claim on a node that is to be emptied."""

    claim = serializers.UUIDField(read_only=True)
    name = serializers.CharField(read_only=True)
    tenant = serializers.CharField(read_only=True)
    gpu_count = serializers.IntegerField(read_only=True)
    core_request = serializers.IntegerField(read_only=True)
    memory_mib = serializers.IntegerField(read_only=True)


class DrainMoveSerializer(LeavingSerializer):
    """One that goes, and where it would be placed were it asked now."""

    to = serializers.CharField(read_only=True, allow_null=True, help_text="A node; null: it would wait.")
    reasons = ReasonSerializer(many=True, read_only=True)


class DrainPlanSerializer(Strict):
    """What draining a node would do."""

    dry_run = serializers.BooleanField(read_only=True)
    node = serializers.CharField(read_only=True)
    grace_seconds = serializers.IntegerField(read_only=True)
    moves = DrainMoveSerializer(many=True, read_only=True)
    stays = LeavingSerializer(many=True, read_only=True, help_text="Claims of pods: their cluster moves these.")
    webhooks_told = serializers.IntegerField(read_only=True)
    reservations = serializers.IntegerField(read_only=True, help_text="Booked on its GPUs: they stay there.")


DRAINED_OR_PLAN = PolymorphicProxySerializer(
    component_name="NodeOrDrainPlan",
    serializers=[NodeSerializer, DrainPlanSerializer],
    resource_type_field_name=None,
)


class NodeDrain(NodeView):
    """The order to empty a node."""

    change_parameters = {"POST": frozenset({"dry_run"})}

    def get_serializer_class(self) -> Any:
        """The question has a shape of its own."""
        return DrainSerializer if self.request.method == "POST" else super().get_serializer_class()

    @extend_schema(parameters=[DRY_RUN], request=DrainSerializer, responses={200: DRAINED_OR_PLAN})
    @idempotent
    def post(self, request: Request, name: str) -> Response:
        """Cordon it, tell the claims on it, and send them back to the queue after a grace; uncordoning ends that."""
        node = self.find(name)
        self.principal.require_operator()
        values, versions = self.parse_body(request), etags.if_match(request)
        if dry_run(request):
            return Response({"dry_run": True, **DrainPlanSerializer(plan(node, **values)).data})
        node = drain_node(principal=self.principal, node=node, versions=versions, **values)
        shown = NodeSerializer(node, context=self.get_serializer_context()).data
        return Response(shown, headers={"ETag": etags.etag(node.version)})


class WantedSerializer(Strict):
    """What should be in force of an assignment."""

    generation = serializers.IntegerField(read_only=True)
    core_request = serializers.IntegerField(read_only=True)
    core_limit = serializers.IntegerField(read_only=True)
    memory_mib = serializers.IntegerField(read_only=True)
    present = serializers.BooleanField(read_only=True, help_text="False: it is being released.")


class SeenSerializer(Strict):
    """What the agent says of it."""

    generation = serializers.IntegerField(read_only=True, help_text="The newest that was in force.")
    state = serializers.CharField(read_only=True)
    reason = serializers.CharField(read_only=True, allow_null=True)
    in_force_at = serializers.DateTimeField(read_only=True, allow_null=True)


class SideBySideSerializer(Strict):
    """One assignment, desired against observed."""

    uid = serializers.UUIDField(read_only=True)
    claim = serializers.UUIDField(read_only=True)
    gpu_uuid = serializers.CharField(read_only=True)
    in_step = serializers.BooleanField(read_only=True, help_text="In force as wanted, and nobody changed it since.")
    desired = WantedSerializer(read_only=True)
    observed = SeenSerializer(read_only=True)


class NodeDriftSerializer(Strict):
    """A node's state as it should be and as it is."""

    frame = serializers.IntegerField(read_only=True, help_text="Number of the newest desired state.")
    observed_frame = serializers.IntegerField(read_only=True, help_text="Of the newest that the agent has answered.")
    repair_drift = serializers.BooleanField(read_only=True)
    repair_asked_at = serializers.DateTimeField(read_only=True, allow_null=True)
    drifts = DriftSerializer(many=True, read_only=True)
    assignments = SideBySideSerializer(many=True, read_only=True)


class NodeDrift(NodeView):
    """What a node should have in force, what it has, and what somebody changed there."""

    serializer_class = NodeDriftSerializer  # type: ignore[assignment]

    def get(self, request: Request, name: str) -> Response:
        """Show desired against observed, per assignment."""
        self.principal.require_operator()
        node = self.find(name)
        drifted = {one["claim_uid"] for one in node.drifts}
        live = Assignment.objects.filter(gpu__node=node).exclude(state=AssignmentState.RELEASED)
        rows = live.select_related("claim", "gpu").order_by("pk")
        facts = ("frame", "observed_frame", "repair_drift", "repair_asked_at", "drifts")
        body = {name: getattr(node, name) for name in facts}
        body["assignments"] = [_side_by_side(row, drifted=str(row.claim.uid) in drifted) for row in rows]
        return Response(self.get_serializer(body).data, headers={"ETag": etags.etag(node.version)})


class NodeRepair(NodeView):
    """The order to put right what somebody changed on a node."""

    @extend_schema(request=None)
    @idempotent
    def post(self, request: Request, name: str) -> Response:
        """Have the node's agent put right what it can of the listed drift."""
        self.without_body(request)
        versions = etags.if_match(request)
        return self.answer(repair_node(principal=self.principal, node=self.find(name), versions=versions))


IN_FORCE = (AssignmentState.IN_FORCE, AssignmentState.OVER_LIMIT)


def _side_by_side(row: Assignment, *, drifted: bool) -> dict[str, Any]:
    current = row.observed_generation == row.generation and row.state in IN_FORCE
    return {
        "uid": row.uid,
        "claim": row.claim.uid,
        "gpu_uuid": row.gpu.uuid,
        "in_step": current and not drifted,
        "desired": {
            "generation": row.generation,
            "core_request": row.core_request,
            "core_limit": row.core_limit,
            "memory_mib": row.memory_mib,
            "present": row.state != AssignmentState.RELEASING,
        },
        "observed": {
            "generation": row.observed_generation,
            "state": row.state,
            "reason": row.reason,
            "in_force_at": row.in_force_at,
        },
    }
