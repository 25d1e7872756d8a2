"""Views of /nodes/{name}/forget/, drain/, drift/ and repair/, which concern the claims on a node."""

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
    """The order to forget a lost node."""

    @extend_schema(request=None)
    @idempotent
    def post(self, request: Request, name: str) -> Response:
        """Release everything that a lost node carries, and shut its agent out until it is enrolled anew."""
        self.without_body(request)
        versions = etags.if_match(request)
        return self.answer(forget_node(principal=self.principal, node=self.find(name), versions=versions))


class DrainSerializer(Strict):
    """The parameters of a drain."""

    grace_seconds = StrictInteger(
        min_value=0,
        max_value=7 * 86_400,
        allow_null=True,
        default=None,
        help_text="The grace of claims after their notice. Null: the pool's, or 30.",
    )


class LeavingSerializer(Strict):
    """A claim on a node that is to be drained."""

    claim = serializers.UUIDField(read_only=True)
    name = serializers.CharField(read_only=True)
    tenant = serializers.CharField(read_only=True)
    gpu_count = serializers.IntegerField(read_only=True)
    core_request = serializers.IntegerField(read_only=True)
    memory_mib = serializers.IntegerField(read_only=True)


class DrainMoveSerializer(LeavingSerializer):
    """A claim that would go, and the node on which it would be placed now."""

    to = serializers.CharField(read_only=True, allow_null=True, help_text="A node; null: it would wait.")
    reasons = ReasonSerializer(many=True, read_only=True)


class DrainPlanSerializer(Strict):
    """The effects of draining a node."""

    dry_run = serializers.BooleanField(read_only=True)
    node = serializers.CharField(read_only=True)
    grace_seconds = serializers.IntegerField(read_only=True)
    moves = DrainMoveSerializer(many=True, read_only=True)
    stays = LeavingSerializer(many=True, read_only=True, help_text="Claims of pods: their cluster moves these.")
    webhooks_told = serializers.IntegerField(read_only=True)
    reservations = serializers.IntegerField(read_only=True, help_text="Reservations on its GPUs; they stay there.")


DRAINED_OR_PLAN = PolymorphicProxySerializer(
    component_name="NodeOrDrainPlan",
    serializers=[NodeSerializer, DrainPlanSerializer],
    resource_type_field_name=None,
)


class NodeDrain(NodeView):
    """The order to drain a node."""

    change_parameters = {"POST": frozenset({"dry_run"})}

    def get_serializer_class(self) -> Any:
        """Return the serializer: the parameters of a drain have a shape of their own."""
        return DrainSerializer if self.request.method == "POST" else super().get_serializer_class()

    @extend_schema(parameters=[DRY_RUN], request=DrainSerializer, responses={200: DRAINED_OR_PLAN})
    @idempotent
    def post(self, request: Request, name: str) -> Response:
        """Cordon the node, and send its claims back to the queue after a notice and a grace; uncordoning ends that."""
        node = self.find(name)
        self.principal.require_operator()
        values, versions = self.parse_body(request), etags.if_match(request)
        if dry_run(request):
            return Response({"dry_run": True, **DrainPlanSerializer(plan(node, **values)).data})
        node = drain_node(principal=self.principal, node=node, versions=versions, **values)
        shown = NodeSerializer(node, context=self.get_serializer_context()).data
        return Response(shown, headers={"ETag": etags.etag(node.version)})


class WantedSerializer(Strict):
    """The desired state of an assignment."""

    generation = serializers.IntegerField(read_only=True)
    core_request = serializers.IntegerField(read_only=True)
    core_limit = serializers.IntegerField(read_only=True)
    memory_mib = serializers.IntegerField(read_only=True)
    present = serializers.BooleanField(read_only=True, help_text="False: it is being released.")


class SeenSerializer(Strict):
    """The state of an assignment as its agent reports it."""

    generation = serializers.IntegerField(read_only=True, help_text="The newest generation that was in force.")
    state = serializers.CharField(read_only=True)
    reason = serializers.CharField(read_only=True, allow_null=True)
    in_force_at = serializers.DateTimeField(read_only=True, allow_null=True)


class SideBySideSerializer(Strict):
    """One assignment, desired against observed."""

    uid = serializers.UUIDField(read_only=True)
    claim = serializers.UUIDField(read_only=True)
    gpu_uuid = serializers.CharField(read_only=True)
    in_step = serializers.BooleanField(
        read_only=True, help_text="The desired limits are in force, and there is no drift."
    )
    desired = WantedSerializer(read_only=True)
    observed = SeenSerializer(read_only=True)


class NodeDriftSerializer(Strict):
    """A node's desired state, and its observed one."""

    frame = serializers.IntegerField(read_only=True, help_text="The number of the newest desired state.")
    observed_frame = serializers.IntegerField(
        read_only=True, help_text="The newest number that the agent has answered."
    )
    repair_drift = serializers.BooleanField(read_only=True)
    repair_asked_at = serializers.DateTimeField(read_only=True, allow_null=True)
    drifts = DriftSerializer(many=True, read_only=True)
    assignments = SideBySideSerializer(many=True, read_only=True)


class NodeDrift(NodeView):
    """A node's desired and observed state, and the changes made there behind the agent's back."""

    serializer_class = NodeDriftSerializer  # type: ignore[assignment]

    def get(self, request: Request, name: str) -> Response:
        """Show desired against observed state, per assignment."""
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
    """The order to repair drift on a node."""

    @extend_schema(request=None)
    @idempotent
    def post(self, request: Request, name: str) -> Response:
        """Order the node's agent to repair what it can of the listed drift."""
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
