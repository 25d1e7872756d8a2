"""Views of /nodes/{name}/forget/, drain/, drift/, repair/ and lift-fence/, which concern the claims on a node."""

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from apps.nodes.api.serializers import DriftSerializer, NodeSerializer
from apps.nodes.api.views import NodeView
from apps.nodes.models.node import DrainMode
from apps.quotas.api.methods import order
from apps.quotas.idempotency import idempotent
from apps.scheduling.api.claims import DRY_RUN, dry_run
from apps.scheduling.api.serializers import ReasonSerializer
from apps.scheduling.models import Assignment, AssignmentState
from apps.scheduling.models.claim import Claim
from apps.scheduling.services.claims.drift import repair_node
from apps.scheduling.services.claims.health import lift_fence
from apps.scheduling.services.reclaiming.draining import drain_node, plan
from apps.scheduling.services.reclaiming.forgetting import forget_node
from gpucloud.api import etags, shown
from gpucloud.api.serializers import Strict, StrictInteger, either
from gpucloud.api.shown import Columns

NodeLiftFence = order(
    NodeView,
    lift_fence,
    "node",
    "Let a fenced node take claims again. Only a process that is found after now fences it anew.",
)
NodeForget = order(
    NodeView,
    forget_node,
    "node",
    "Release everything that a lost node carries, and shut its agent out until it is enrolled anew.",
)


class DrainSerializer(Strict):
    """The parameters of a drain."""

    grace_seconds = StrictInteger(
        min_value=0,
        max_value=7 * 86_400,
        allow_null=True,
        default=None,
        help_text="The grace of claims after their notice. Null: the pool's, or 30.",
    )
    mode = serializers.ChoiceField(
        choices=DrainMode.choices, default=DrainMode.REQUEUE, help_text="What happens to its claims."
    )


class LeavingSerializer(Strict):
    """A claim on a node that is to be drained."""

    claim = shown.uid()
    name = shown.text()
    tenant = shown.text()
    columns = Columns(Claim, "gpu_count core_request memory_mib")


class DrainMoveSerializer(LeavingSerializer):
    """A claim that would move or be queued again, and the node on which it would be placed now."""

    to = shown.text("A node; null: it would wait.", null=True)
    reasons = ReasonSerializer(many=True, read_only=True)
    cannot_suspend = shown.text("Why it would not be suspended; null: it is not to be.", null=True)
    carries = shown.flag("True: it moves there, and its running programs are carried, if they can be.")
    restarts = shown.flag("True: it moves there, its programs save their state, and may start again.")


class StayingSerializer(LeavingSerializer):
    """A claim that a drain leaves on its node."""

    suspended = shown.flag("True: it is suspended, and holds no GPU. False: its cluster moves its pod.")


class DrainPlanSerializer(Strict):
    """The effects of draining a node."""

    dry_run = shown.flag()
    node = shown.text()
    grace_seconds = shown.integer()
    mode = shown.choice(DrainMode.choices)
    suspends = LeavingSerializer(
        many=True, read_only=True, help_text="Claims that would be suspended until the node is uncordoned."
    )
    moves = DrainMoveSerializer(many=True, read_only=True)
    stays = StayingSerializer(
        many=True, read_only=True, help_text="Claims of pods, which their cluster moves, and suspended ones."
    )
    webhooks_told = shown.integer()
    reservations = shown.integer("Reservations on its GPUs; they stay there.")


DRAINED_OR_PLAN = either("NodeOrDrainPlan", NodeSerializer, DrainPlanSerializer)


class NodeDrain(NodeView):
    """The order to drain a node."""

    change_parameters = {"POST": frozenset({"dry_run"})}
    serializer_classes = {"POST": DrainSerializer}

    @extend_schema(parameters=[DRY_RUN], request=DrainSerializer, responses={200: DRAINED_OR_PLAN})
    @idempotent
    def post(self, request: Request, name: str) -> Response:
        """Cordon the node, and have its claims leave after a notice and a grace; uncordoning ends that.

        With `mode` `suspend` claims resume by themselves once the node is uncordoned. With `move` those that are
        `movable` restart on other nodes, and the others are suspended.
        """
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

    columns = Columns(Assignment, "generation core_request core_limit memory_mib")
    present = shown.flag("False: it is being released.")


class SeenSerializer(Strict):
    """The state of an assignment as its agent reports it."""

    generation = shown.integer("The newest generation that was in force.", source="observed_generation")
    state = shown.text()
    columns = Columns(Assignment, "reason in_force_at")


class SideBySideSerializer(Strict):
    """One assignment, desired against observed."""

    uid = shown.uid()
    claim = shown.uid(source="claim.uid")
    gpu_uuid = shown.text(source="gpu.uuid")
    in_step = shown.flag("The desired limits are in force, and there is no drift.")
    desired = WantedSerializer(source="*", read_only=True)
    observed = SeenSerializer(source="*", read_only=True)


class NodeDriftSerializer(Strict):
    """A node's desired state, and its observed one."""

    frame = shown.integer("The number of the newest desired state.")
    observed_frame = shown.integer("The newest number that the agent has answered.")
    repair_drift = shown.flag()
    repair_asked_at = shown.time(null=True)
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
        live = Assignment.objects.filter(gpu__node=node).live()
        rows = live.select_related("claim", "gpu").order_by("pk")
        facts = ("frame", "observed_frame", "repair_drift", "repair_asked_at", "drifts")
        body = {name: getattr(node, name) for name in facts}
        body["assignments"] = [_compare(row, drifted=str(row.claim.uid) in drifted) for row in rows]
        return Response(self.get_serializer(body).data, headers={"ETag": etags.etag(node.version)})


NodeRepair = order(NodeView, repair_node, "node", "Order the node's agent to repair what it can of the listed drift.")


IN_FORCE = (AssignmentState.IN_FORCE, AssignmentState.OVER_LIMIT)


def _compare(row: Any, *, drifted: bool) -> Any:
    """Return the assignment with what its comparison shows beside its columns."""
    row.present = row.state != AssignmentState.RELEASING
    row.in_step = row.observed_generation == row.generation and row.state in IN_FORCE and not drifted
    return row
