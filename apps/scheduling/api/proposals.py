"""Views of /proposals/ and /pools/{name}/rebalance/: the rebalancer's findings, and the answers to them."""

from typing import Any

from django_filters import rest_framework as filters
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from apps.quotas.api.methods import lists, order, shows
from apps.quotas.api.views import CHANGES, ApiView, ListMixin
from apps.quotas.idempotency import idempotent
from apps.quotas.models import Pool, Tenant
from apps.quotas.models.pool import RebalanceMode, RebalancePolicy
from apps.scheduling.api.claims import DRY_RUN, dry_run
from apps.scheduling.models import Proposal, ProposalState
from apps.scheduling.models.proposal import ProposalKind
from apps.scheduling.services.rebalancing import proposals
from gpucloud.api import shown
from gpucloud.api.filters import Named, filters_of
from gpucloud.api.serializers import Strict
from gpucloud.api.shown import Columns

# A week of use before the first replayed day is kept, so that its forecasts know the hours of a week.
MOST_DAYS = 30
POLICY = OpenApiParameter(
    "policy",
    OpenApiTypes.STR,
    enum=RebalancePolicy.values,
    description="With dry_run only: show what this policy would change, instead of the pool's.",
)
DAYS = OpenApiParameter(
    "days",
    OpenApiTypes.INT,
    description="With dry_run only: also replay the pool's last days (1 to 30) under each policy.",
)


class FoundSerializer(Strict):
    """A change of one claim, and its reason."""

    claim = shown.uid(source="claim.uid")
    claim_name = shown.text(source="claim.name")
    tenant = shown.text(source="claim.tenant.slug")
    kind = shown.choice(ProposalKind.choices)
    policy = shown.text("The policy; `waking`: by the claim's telemetry, between runs.")
    before = serializers.DictField(
        child=serializers.JSONField(), read_only=True, help_text="Numbers; `gpus`: the uuids of GPUs."
    )
    after = serializers.DictField(child=serializers.JSONField(), read_only=True)
    explanation = shown.text()
    numbers = serializers.DictField(child=serializers.FloatField(), read_only=True, help_text="The measurements.")
    state = shown.choice(ProposalState.choices)
    words = shown.text("Why it failed, expired or was dismissed.")


class ProposalSerializer(FoundSerializer):
    """A change that was proposed or applied."""

    uid = shown.uid()
    pool = shown.text(source="pool.name")
    columns = Columns(Proposal, "decided_by decided_at version created_at updated_at")


class ProposalView(ApiView):
    """The common part of proposal views."""

    serializer_class: Any = ProposalSerializer
    lookup_key = "uid"
    read_scope, write_scope = "claims:read", "claims:write"
    queryset = Proposal.objects.select_related("pool", "claim__tenant")

    answer_class, address = ProposalSerializer, "/proposals/{row.uid}/"


class ProposalList(ProposalView, ListMixin):
    """Proposals of the rebalancer, and changes that it applied."""

    filterset_class = filters_of(
        Proposal,
        "kind",
        "state",
        pool=Named(Pool.objects, "name"),
        tenant=Named(Tenant.objects, "slug", field_name="claim__tenant"),
        claim=filters.UUIDFilter(field_name="claim__uid"),
    )
    get = lists("List proposals, newest first.")


class ProposalDetail(ProposalView):
    """One proposal."""

    get = shows("Show a proposal.")


ProposalAccept = order(
    ProposalView, proposals.accept, "proposal", "Apply it now, as a PATCH of the claim would (members, operators)."
)


class DismissalSerializer(Strict):
    """The reason of a dismissal."""

    words = serializers.CharField(max_length=2000, allow_blank=True, default="")


ProposalDismiss = order(
    ProposalView,
    proposals.dismiss,
    "proposal",
    "Leave the claim as it is, for the cool-down at least (members, operators).",
    body=DismissalSerializer,
)


class ThrottledSerializer(Strict):
    """A claim whose owner would have had to wait."""

    claim = shown.uid()
    claim_name = shown.text()
    windows = shown.integer("Windows of five minutes in which it needed more than was kept for it.")


class PolicyReplaySerializer(Strict):
    """The outcome of one policy in the replayed days."""

    policy = shown.choice(RebalancePolicy.choices)
    lent_core_hours = shown.number("GPU-hours that best-effort claims could have used.")
    throttled_percent = shown.number("Windows of five minutes in which an owner needed more than was kept for it.")
    changes_per_day = shown.number("Changes of one claim in a day.")
    wrong_percent = shown.number("Forecasts that were too low; null for the other policies.", null=True)
    throttled = ThrottledSerializer(many=True, read_only=True, help_text="The claims concerned most often.")


class ReplaySerializer(Strict):
    """The last days of a pool, replayed under each policy."""

    days = shown.integer()
    claims = shown.integer("Replayed claims: those with the largest guarantees and the longest use.")
    left_out = shown.integer("Claims that are not replayed.")
    least_days = shown.integer("Days of use that a forecast needs; before, `forecast` is `percentile`.")
    policies = PolicyReplaySerializer(many=True, read_only=True)


class RunSerializer(Strict):
    """A run of the rebalancer."""

    pool = shown.text(source="pool.name")
    mode = shown.choice(RebalanceMode.choices, source="pool.rebalance_mode")
    policy = shown.choice(RebalancePolicy.choices, source="pool.rebalance_policy")
    dry_run = shown.flag()
    considered = shown.integer("The number of claims considered.")
    changes = FoundSerializer(many=True, source="proposals", read_only=True)
    explanation = shown.text("Why there are no changes; null where there are.", null=True, source="why")
    replay = ReplaySerializer(
        read_only=True, allow_null=True, help_text="The last `days` under each policy; null unless asked for."
    )


class PoolRebalance(ApiView):
    """A run of the rebalancer on request."""

    serializer_class: Any = RunSerializer
    queryset = Pool.objects.all()
    lookup_key = "name"
    write_scope = "nodes:write"
    operator_methods = CHANGES
    tagged = False
    change_parameters = {"POST": frozenset({"dry_run", "policy", "days"})}

    @extend_schema(request=None, parameters=[DRY_RUN, POLICY, DAYS], responses={200: RunSerializer})
    @idempotent
    def post(self, request: Request, name: str) -> Response:
        """Run the rebalancer over a pool, or show what it would change and why (operators)."""
        self.without_body(request)
        pool = self.find(name)
        policy, days = _preview_of(request)
        if policy or days:
            found = proposals.preview_policy(principal=self.principal, pool=pool, policy=policy, days=days)
        else:
            found = proposals.rebalance(principal=self.principal, pool=pool, dry_run=dry_run(request))
        return Response(RunSerializer(found).data)


def _preview_of(request: Request) -> tuple[str | None, int | None]:
    """Return the policy and the days that a dry run asks for. Raises ValidationError."""
    policy, days = request.query_params.get("policy"), request.query_params.get("days")
    wrong = {}
    if policy is not None and policy not in RebalancePolicy.values:
        wrong["policy"] = [f"Must be one of {', '.join(RebalancePolicy.values)}."]
    if days is not None and not (days.isdecimal() and len(days) < 4 and 1 <= int(days) <= MOST_DAYS):
        wrong["days"] = [f"Must be a number from 1 to {MOST_DAYS}."]
    if (policy or days) and not dry_run(request):
        wrong["dry_run"] = ["Must be true with `policy` or `days`: they change nothing."]
    if wrong:
        raise serializers.ValidationError(wrong)
    return policy, None if days is None else int(days)
