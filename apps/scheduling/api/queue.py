"""Views of /pools/{name}/queue/ and fair-share/, and the place in the queue that a waiting claim's document shows."""

from collections.abc import Sequence
from typing import Any

from django.shortcuts import get_object_or_404
from rest_framework.request import Request
from rest_framework.response import Response

from apps.quotas.api.views import ApiView, ListMixin
from apps.quotas.models import Pool, Tenant
from apps.quotas.models.pool import FairShare
from apps.scheduling.api.serializers import ClaimSerializer, ClassField, ReasonSerializer
from apps.scheduling.models import Claim, ClaimState
from apps.scheduling.services.cycles import queue
from apps.scheduling.services.cycles.fair_share import read_table
from gpucloud.api import shown
from gpucloud.api.filters import Named, filters_of
from gpucloud.api.pagination import InOrder
from gpucloud.api.serializers import Strict
from gpucloud.api.shown import Columns

POSITION_HELP = "1 is next. Null: not in line, because it starts later or its group is not complete."
AT_HELP = "Null: it cannot be estimated."


class EstimateSerializer(Strict):
    """The estimated start, and its basis."""

    at = shown.time(AT_HELP, null=True, source="starts_at")
    basis = shown.choice(
        ["time-limits", "recent-rate", "none"],
        "By the time limits of running claims, or by the recent rate of releases of that size.",
        source="estimate.basis",
    )
    detail = shown.text(source="estimate.detail")


class SuggestionSerializer(Strict):
    """Another value of one field, with which the claim would start now."""

    # `field` is an attribute of every serializer.
    name = shown.text("A field of the claim.", source="field")
    value = shown.json(null=True)
    detail = shown.text()


class StepSerializer(Strict):
    """A state of a claim, and the time at which it began."""

    state = shown.choice(ClaimState.choices)
    at = shown.time()


class ClaimDocumentSerializer(ClaimSerializer):
    """One claim with its states so far; if it waits, also its place in the queue."""

    timeline = StepSerializer(source="steps", many=True, read_only=True, help_text="Its states, oldest first.")

    queue_position = shown.integer(POSITION_HELP, null=True, source="place.position", default=None)
    queue_length = shown.integer(
        "The number of waiting claims in the pool; null unless it waits.",
        null=True,
        source="place.length",
        default=None,
    )
    estimate = EstimateSerializer(
        source="place", read_only=True, allow_null=True, default=None, help_text="Null unless it waits."
    )
    suggestions = SuggestionSerializer(
        source="place.suggestions",
        many=True,
        read_only=True,
        default=(),
        help_text="Changes with which it would start now, one field each.",
    )

    reasons_at = shown.time(
        "The time at which reasons, position, estimate and suggestions were evaluated; null unless it waits.",
        null=True,
        source="place.evaluated_at",
        default=None,
    )
    fair_share = shown.text(
        "In a pool whose fair share remembers, what the tenant holds and held; null unless it waits in line there.",
        null=True,
        source="place.fair_share",
        default=None,
    )
    # After the fields of its own, as in the document.
    class_ = ClassField(required=False)

    def get_estimated_start_at(self, claim: Any) -> Any:
        """Return the time of the estimate."""
        return claim.place and claim.place.starts_at

    def to_representation(self, instance: Any) -> dict[str, Any]:
        """Compute the claim's place, for this one claim."""
        instance.place = queue.find_place(instance)
        instance.steps = [{"state": state, "at": at} for state, at in instance.timeline]
        return super().to_representation(instance)


class QueuedSerializer(Strict):
    """A waiting claim, with its place."""

    position = shown.integer(POSITION_HELP, null=True)
    claim = shown.uid(source="uid")
    tenant = shown.text(source="tenant.slug")
    columns_1 = Columns(
        Claim,
        "name state gpu_count core_request memory_mib gpu_model priority time_limit_seconds start_at group group_size",
    )
    reasons = ReasonSerializer(many=True, read_only=True)
    estimate = EstimateSerializer(source="place", read_only=True)
    columns_2 = Columns(Claim, "created_at updated_at")


class TenantShareSerializer(Strict):
    """One tenant, as the order of the queue sees it."""

    tenant = shown.text(source="tenant.slug")
    weight = shown.integer(source="tenant.weight")
    waiting = shown.integer("Its claims that wait in the pool.")
    held_gpus = shown.number("The core that it holds now, in GPUs.")
    held_memory_mib = shown.integer(source="held.memory_mib")
    past_gpus = shown.number("The core that it held on average, in GPUs; an older time counts less.")
    past_memory_mib = shown.number(source="past.memory_mib")
    share_percent = shown.number("Its weight, of the weights of all tenants here: Slurm's normalized shares.")
    usage_percent = shown.number("Its past use, of that of all tenants here: Slurm's normalized usage.")
    factor = shown.number("Slurm's fair-share factor, 2^(-usage / share).", source="standing.factor")
    order_percent = shown.number(
        "Its largest part of a resource, now and past together, divided by its weight: the least goes first."
    )


class FairShareSerializer(Strict):
    """A pool's fair share: its tenants that hold or held something or wait, next first."""

    pool = shown.text(source="pool.name")
    fair_share = shown.choice(FairShare.choices, source="pool.fair_share")
    half_life_seconds = shown.integer(source="pool.half_life_seconds")
    counted_to = shown.time("The moment up to which past use is counted; null: it is not.", null=True)
    tenants = TenantShareSerializer(many=True, read_only=True)


class PoolFairShare(ApiView):
    """The fair share of a pool's tenants."""

    serializer_class = FairShareSerializer
    queryset = Pool.objects.all()
    lookup_key = "name"
    read_scope = "claims:read"
    tagged = False

    def get(self, request: Request, name: str) -> Response:
        """Show what the caller's tenants hold and held in the pool, and their share; operators see all tenants."""
        return Response(FairShareSerializer(read_table(self.find(name), self.principal)).data)


class PoolQueue(ListMixin, ApiView):
    """A pool's queue."""

    serializer_class = QueuedSerializer
    filterset_class = filters_of(Claim, tenant=Named(Tenant.objects, "slug"))
    pagination_class = InOrder
    read_scope = "claims:read"
    queryset = Claim.objects.in_queue().select_related("tenant")

    def get(self, request: Request, name: str) -> Response:
        """List the claims that wait in the pool, next first, with their places and estimated starts."""
        pool = get_object_or_404(Pool, name=name)
        rows = self.filter_queryset(self.get_queryset().filter(pool=pool))
        seen = queue.get_snapshot(pool)
        narrowed = set(request.query_params) - {"cursor", "limit"}
        uids = queue.list_visible(seen, self.principal, rows.values_list("uid", flat=True) if narrowed else None)
        page: Sequence[str] = self.paginate_queryset(uids)  # type: ignore[assignment]
        shown = queue.attach_places(seen, page)
        return self.get_paginated_response(self.get_serializer(shown, many=True).data)
