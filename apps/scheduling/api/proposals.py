"""Views of /proposals/ and /pools/{name}/rebalance/: the rebalancer's findings, and the answers to them."""

from typing import Any

from django_filters import rest_framework as filters
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from apps.quotas.api.views import CHANGES, ApiView, ListMixin
from apps.quotas.idempotency import idempotent
from apps.quotas.models import Pool, Tenant
from apps.quotas.models.pool import RebalanceMode, RebalancePolicy
from apps.scheduling.api.claims import DRY_RUN, dry_run
from apps.scheduling.models import Proposal, ProposalState
from apps.scheduling.models.proposal import ProposalKind
from apps.scheduling.services.rebalancing import proposals
from gpucloud.api import etags
from gpucloud.api.filters import Changed, Named
from gpucloud.api.serializers import Strict


class FoundSerializer(Strict):
    """A change of one claim, and its reason."""

    claim = serializers.UUIDField(source="claim.uid", read_only=True)
    claim_name = serializers.CharField(source="claim.name", read_only=True)
    tenant = serializers.CharField(source="claim.tenant.slug", read_only=True)
    kind = serializers.ChoiceField(choices=ProposalKind.choices, read_only=True)
    policy = serializers.CharField(
        read_only=True, help_text="The policy; `waking`: by the claim's telemetry, between runs."
    )
    before = serializers.DictField(child=serializers.IntegerField(), read_only=True)
    after = serializers.DictField(child=serializers.IntegerField(), read_only=True)
    explanation = serializers.CharField(read_only=True)
    numbers = serializers.DictField(child=serializers.FloatField(), read_only=True, help_text="The measurements.")
    state = serializers.ChoiceField(choices=ProposalState.choices, read_only=True)
    words = serializers.CharField(read_only=True, help_text="Why it failed, expired or was dismissed.")


class ProposalSerializer(FoundSerializer):
    """A change that was proposed or applied."""

    uid = serializers.UUIDField(read_only=True)
    pool = serializers.CharField(source="pool.name", read_only=True)
    decided_by = serializers.CharField(read_only=True, allow_null=True)
    decided_at = serializers.DateTimeField(read_only=True, allow_null=True)
    version = serializers.IntegerField(read_only=True)
    created_at = serializers.DateTimeField(read_only=True)
    updated_at = serializers.DateTimeField(read_only=True)


class ProposalFilter(Changed):
    """Proposals by pool, tenant, claim, kind, state and time of change."""

    pool = Named(Pool.objects, "name")
    tenant = Named(Tenant.objects, "slug", field_name="claim__tenant")
    claim = filters.UUIDFilter(field_name="claim__uid")

    class Meta:
        model = Proposal
        fields = ["pool", "tenant", "claim", "kind", "state", "updated_since"]


class ProposalView(ApiView):
    """The common part of proposal views."""

    serializer_class: Any = ProposalSerializer
    lookup_key = "uid"
    read_scope, write_scope = "claims:read", "claims:write"

    def get_queryset(self) -> Any:
        """Return the proposals that the caller may see."""
        return Proposal.objects.visible_to(self.principal).select_related("pool", "claim__tenant")

    def respond(self, proposal: Proposal) -> Response:
        """Return a response with the proposal as it is now."""
        headers = {"ETag": etags.etag(proposal.version), "Location": f"/api/v1/proposals/{proposal.uid}/"}
        return Response(ProposalSerializer(proposal).data, headers=headers)


class ProposalList(ProposalView, ListMixin):
    """Proposals of the rebalancer, and changes that it applied."""

    filterset_class = ProposalFilter

    def get(self, request: Request) -> Response:
        """List proposals, newest first."""
        return self.list_page(self.get_queryset())


class ProposalDetail(ProposalView):
    """One proposal."""

    def get(self, request: Request, uid: str) -> Response:
        """Show a proposal."""
        return self.answer(self.find(uid))


class ProposalAccept(ProposalView):
    """The acceptance of a proposal."""

    @extend_schema(request=None, responses={200: ProposalSerializer})
    @idempotent
    def post(self, request: Request, uid: str) -> Response:
        """Apply it now, as a PATCH of the claim would (members, operators)."""
        self.without_body(request)
        versions = etags.if_match(request)
        return self.respond(proposals.accept(principal=self.principal, proposal=self.find(uid), versions=versions))


class DismissalSerializer(Strict):
    """The reason of a dismissal."""

    words = serializers.CharField(max_length=2000, allow_blank=True, default="")


class ProposalDismiss(ProposalView):
    """The dismissal of a proposal."""

    serializer_class: Any = DismissalSerializer

    @extend_schema(responses={200: ProposalSerializer})
    @idempotent
    def post(self, request: Request, uid: str) -> Response:
        """Leave the claim as it is, for the cool-down at least (members, operators)."""
        proposal, values, versions = self.find(uid), self.parse_body(request), etags.if_match(request)
        return self.respond(proposals.dismiss(principal=self.principal, proposal=proposal, versions=versions, **values))


class RunSerializer(Strict):
    """A run of the rebalancer."""

    pool = serializers.CharField(source="pool.name", read_only=True)
    mode = serializers.ChoiceField(source="pool.rebalance_mode", choices=RebalanceMode.choices, read_only=True)
    policy = serializers.ChoiceField(source="pool.rebalance_policy", choices=RebalancePolicy.choices, read_only=True)
    dry_run = serializers.BooleanField(read_only=True)
    considered = serializers.IntegerField(read_only=True, help_text="The number of claims considered.")
    changes = FoundSerializer(many=True, source="proposals", read_only=True)
    explanation = serializers.CharField(
        source="why", read_only=True, allow_null=True, help_text="Why there are no changes; null where there are."
    )


class PoolRebalance(ApiView):
    """A run of the rebalancer on request."""

    serializer_class: Any = RunSerializer
    queryset = Pool.objects.all()
    lookup_key = "name"
    write_scope = "nodes:write"
    operator_methods = CHANGES
    tagged = False
    change_parameters = {"POST": frozenset({"dry_run"})}

    @extend_schema(request=None, parameters=[DRY_RUN], responses={200: RunSerializer})
    @idempotent
    def post(self, request: Request, name: str) -> Response:
        """Run the rebalancer over a pool, or show what it would change and why (operators)."""
        self.without_body(request)
        pool = self.find(name)
        found = proposals.rebalance(principal=self.principal, pool=pool, dry_run=dry_run(request))
        return Response(RunSerializer(found).data)
