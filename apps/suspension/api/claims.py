"""Views of /claims/{uid}/suspend/, /claims/{uid}/resume/ and /claims/{uid}/move/."""

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from apps.quotas.idempotency import idempotent
from apps.scheduling.api.claims import DRY_RUN, WAIT, ClaimView, dry_run
from apps.scheduling.api.serializers import ClaimSerializer
from apps.scheduling.models import Claim
from apps.suspension.between.ordering import (
    END_SECONDS,
    MOST_END_SECONDS,
    move_claim_to_node,
    rehearse_move_to_node,
)
from apps.suspension.moving import move_claim, rehearse_move
from apps.suspension.services import rehearse_suspend, resume_claim, suspend_claim
from gpucloud.api import etags
from gpucloud.api.serializers import Strict, StrictInteger

ANSWERS = {202: ClaimSerializer, 200: ClaimSerializer}


class ClaimSuspend(ClaimView):
    """Suspension of a claim."""

    change_parameters = {"POST": frozenset({"wait", "dry_run"})}

    @extend_schema(request=None, parameters=[WAIT, DRY_RUN], responses=ANSWERS)
    @idempotent
    def post(self, request: Request, uid: str) -> Response:
        """Suspend the claim. 202 while its programs leave their GPUs, 200 once they have; may be repeated.

        The GPUs and the quota are free once it is `suspended`. A preview also says what would come free (`frees`), and
        the memory that each node needs and has (`host_memory`).
        """
        self.without_body(request)
        claim, versions = self.named(uid), etags.if_match(request)

        def act() -> Claim:
            return suspend_claim(principal=self.principal, claim=claim, versions=versions)

        if dry_run(request):
            return Response(rehearse_suspend(act, lambda row: dict(self.respond(row).data), claim=claim))
        row = act()
        return self.respond(row, status=200 if row.state == "suspended" else 202)


class ClaimResume(ClaimView):
    """Resumption of a claim."""

    change_parameters = {"POST": frozenset({"wait", "dry_run"})}

    @extend_schema(request=None, parameters=[WAIT, DRY_RUN], responses=ANSWERS)
    @idempotent
    def post(self, request: Request, uid: str) -> Response:
        """Resume the claim: it waits in the queue for GPUs of its node. 202 meanwhile, 200 once active. Repeatable."""
        self.without_body(request)
        claim, versions = self.named(uid), etags.if_match(request)

        def act() -> Claim:
            return resume_claim(principal=self.principal, claim=claim, versions=versions)

        if dry_run(request):
            return self.respond_preview(act)
        row = act()
        return self.respond(row, status=200 if row.state == "active" else 202)


class MoveSerializer(Strict):
    """The place to which a claim moves."""

    gpus = serializers.ListField(
        child=serializers.CharField(max_length=64),
        required=False,
        min_length=1,
        max_length=16,
        help_text="UUIDs of all GPUs on which it is to be, as many as it has: of its node, or of `node`. Left out: the "
        "placement policy chooses.",
    )
    node = serializers.CharField(
        max_length=63, required=False, help_text="The name of another node of its pool. Left out: it stays on its node."
    )
    anywhere = serializers.BooleanField(
        required=False, help_text="True: to another node of its pool, which the placement policy chooses."
    )
    restart = serializers.BooleanField(
        required=False,
        help_text="True: its programs end for a move to another node. They get SIGUSR1 if they handle it, and time "
        "to save their state, and whoever started them starts them again there. Left out: running programs are carried "
        "to the other node, if both nodes can.",
    )
    end_seconds = StrictInteger(
        min_value=1,
        max_value=MOST_END_SECONDS,
        required=False,
        help_text=f"The longest time for programs to save their state and end. Default: {END_SECONDS}.",
    )

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Refuse what would be ignored."""
        between = "node" in attrs or attrs.get("anywhere")
        if "node" in attrs and attrs.get("anywhere"):
            raise serializers.ValidationError({"anywhere": ["Give node or anywhere."]})
        if not between and (attrs.get("restart") or "end_seconds" in attrs):
            raise serializers.ValidationError(
                {"restart": ["Programs go on where they were on their own node: give node."]}
            )
        if attrs.get("anywhere") and "gpus" in attrs:
            raise serializers.ValidationError({"gpus": ["Give node with gpus of another node."]})
        if between and "end_seconds" in attrs and not attrs.get("restart"):
            raise serializers.ValidationError({"end_seconds": ["Carried programs do not end: give restart."]})
        return attrs


class ClaimMove(ClaimView):
    """Move of a claim to other GPUs of its node, or to another node."""

    serializer_class = MoveSerializer
    change_parameters = {"POST": frozenset({"wait", "dry_run"})}

    @extend_schema(request=MoveSerializer, parameters=[WAIT, DRY_RUN], responses=ANSWERS)
    @idempotent
    def post(self, request: Request, uid: str) -> Response:
        """Move the claim to other GPUs or another node. 202 meanwhile, 200 once active; may be repeated.

        On its node its programs stand still for a second and 0.7 s for each GiB. A preview also says from and to
        which GPUs they would move (`moves`), and the longest pause to expect (`pause_seconds`). For another node
        (`node`, or `anywhere`) the claim must be `movable`; its programs are carried there, and stand still for a
        second and 5 s for each GiB, or end and start again (`restart`). A preview of that also says how (`moves_by`),
        and why running programs could not be carried (`not_carried`).
        """
        claim, versions = self.named(uid), etags.if_match(request)
        wanted = self.parse_body(request)
        between = bool(wanted.pop("anywhere", False)) or "node" in wanted

        def act() -> Claim:
            if between:
                return move_claim_to_node(principal=self.principal, claim=claim, versions=versions, **wanted)
            return move_claim(principal=self.principal, claim=claim, gpus=wanted.get("gpus"), versions=versions)

        def show(row: Claim) -> dict[str, Any]:
            return dict(self.respond(row).data)

        if dry_run(request) and between:
            seconds = wanted.get("end_seconds", END_SECONDS) if wanted.get("restart") else None
            return Response(rehearse_move_to_node(act, show, end_seconds=seconds))
        if dry_run(request):
            return Response(rehearse_move(act, show, claim=claim))
        row = act()
        return self.respond(row, status=200 if row.state == "active" else 202)
