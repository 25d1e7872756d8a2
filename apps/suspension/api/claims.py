"""Views of /claims/{uid}/suspend/ and /claims/{uid}/resume/."""

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from apps.quotas.idempotency import idempotent
from apps.scheduling.api.claims import DRY_RUN, WAIT, ClaimView, dry_run
from apps.scheduling.api.serializers import ClaimSerializer
from apps.scheduling.models import Claim
from apps.suspension.services import rehearse_suspend, resume_claim, suspend_claim
from gpucloud.api import etags

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
        """Resume the claim: it waits in the queue for its own GPUs. 202 meanwhile, 200 once active; may be repeated."""
        self.without_body(request)
        claim, versions = self.named(uid), etags.if_match(request)

        def act() -> Claim:
            return resume_claim(principal=self.principal, claim=claim, versions=versions)

        if dry_run(request):
            return self.respond_preview(act)
        row = act()
        return self.respond(row, status=200 if row.state == "active" else 202)
