"""Views of /claims/{uid}/suspend/, /claims/{uid}/resume/ and /claims/{uid}/move/."""

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from apps.quotas.idempotency import idempotent
from apps.scheduling.api.claims import DRY_RUN, WAIT, ClaimView, dry_run
from apps.scheduling.api.serializers import ClaimSerializer
from apps.scheduling.models import Claim
from apps.suspension.moving import move_claim, rehearse_move
from apps.suspension.services import rehearse_suspend, resume_claim, suspend_claim
from gpucloud.api import etags
from gpucloud.api.serializers import Strict

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
    """The GPUs to which a claim moves."""

    gpus = serializers.ListField(
        child=serializers.CharField(max_length=64),
        required=False,
        min_length=1,
        max_length=16,
        help_text="UUIDs of all GPUs of its node on which it is to be, as many as it has. Left out: the placement "
        "policy chooses others than its own.",
    )


class ClaimMove(ClaimView):
    """Move of a claim to other GPUs of its node."""

    serializer_class = MoveSerializer
    change_parameters = {"POST": frozenset({"wait", "dry_run"})}

    @extend_schema(request=MoveSerializer, parameters=[WAIT, DRY_RUN], responses=ANSWERS)
    @idempotent
    def post(self, request: Request, uid: str) -> Response:
        """Move the claim's programs to other GPUs of their node. 202 meanwhile, 200 once active; may be repeated.

        They stand still for about a second and 0.7 s for each GiB of their GPU memory. A preview also says from and to
        which GPUs they would move (`moves`), and the longest pause to expect (`pause_seconds`).
        """
        claim, versions = self.named(uid), etags.if_match(request)
        gpus = self.parse_body(request).get("gpus")

        def act() -> Claim:
            return move_claim(principal=self.principal, claim=claim, gpus=gpus, versions=versions)

        if dry_run(request):
            return Response(rehearse_move(act, lambda row: dict(self.respond(row).data), claim=claim))
        row = act()
        return self.respond(row, status=200 if row.state == "active" else 202)
