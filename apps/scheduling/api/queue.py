"""The view of /pools/{name}/queue/, and the place in the queue that a waiting claim's document shows."""

from collections.abc import Sequence
from typing import Any

from django.shortcuts import get_object_or_404
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from apps.quotas.api.views import ApiView, ListMixin
from apps.quotas.models import Pool, Tenant
from apps.scheduling.api.serializers import ClaimSerializer, ReasonSerializer
from apps.scheduling.models import Claim, ClaimState
from apps.scheduling.models.claim import WAITING
from apps.scheduling.services.cycles import queue
from gpucloud.api.filters import Changed, Named
from gpucloud.api.pagination import InOrder
from gpucloud.api.serializers import Strict

POSITION_HELP = "1 is next. Null: not in line, because it starts later or its group is not complete."
AT_HELP = "Null: it cannot be estimated."


class EstimateSerializer(Strict):
    """The estimated start, and its basis."""

    at = serializers.DateTimeField(read_only=True, source="starts_at", allow_null=True, help_text=AT_HELP)
    basis = serializers.ChoiceField(
        choices=["time-limits", "recent-rate", "none"],
        read_only=True,
        source="estimate.basis",
        help_text="By the time limits of running claims, or by the recent rate of releases of that size.",
    )
    detail = serializers.CharField(read_only=True, source="estimate.detail")


class SuggestionSerializer(Strict):
    """Another value of one field, with which the claim would start now."""

    # `field` is an attribute of every serializer.
    name = serializers.CharField(read_only=True, source="field", help_text="A field of the claim.")
    value = serializers.JSONField(read_only=True, allow_null=True)
    detail = serializers.CharField(read_only=True)


class StepSerializer(Strict):
    """A state of a claim, and the time at which it began."""

    state = serializers.ChoiceField(choices=ClaimState.choices, read_only=True)
    at = serializers.DateTimeField(read_only=True)


class ClaimDocumentSerializer(ClaimSerializer):
    """One claim with its states so far; if it waits, also its place in the queue."""

    timeline = StepSerializer(source="steps", many=True, read_only=True, help_text="Its states, oldest first.")

    queue_position = serializers.IntegerField(
        source="place.position", read_only=True, allow_null=True, default=None, help_text=POSITION_HELP
    )
    queue_length = serializers.IntegerField(
        source="place.length",
        read_only=True,
        allow_null=True,
        default=None,
        help_text="The number of waiting claims in the pool; null unless it waits.",
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

    reasons_at = serializers.DateTimeField(
        source="place.evaluated_at",
        read_only=True,
        allow_null=True,
        default=None,
        help_text="The time at which reasons, position, estimate and suggestions were evaluated; null unless it waits.",
    )

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

    position = serializers.IntegerField(read_only=True, allow_null=True, help_text=POSITION_HELP)
    claim = serializers.UUIDField(source="uid", read_only=True)
    tenant = serializers.CharField(source="tenant.slug", read_only=True)
    name = serializers.CharField(read_only=True)
    state = serializers.ChoiceField(choices=ClaimState.choices, read_only=True)
    gpu_count = serializers.IntegerField(read_only=True)
    core_request = serializers.IntegerField(read_only=True)
    memory_mib = serializers.IntegerField(read_only=True)
    gpu_model = serializers.CharField(read_only=True, allow_null=True)
    priority = serializers.IntegerField(read_only=True)
    time_limit_seconds = serializers.IntegerField(read_only=True, allow_null=True)
    start_at = serializers.DateTimeField(read_only=True, allow_null=True)
    group = serializers.CharField(read_only=True, allow_null=True)
    group_size = serializers.IntegerField(read_only=True, allow_null=True)
    reasons = ReasonSerializer(many=True, read_only=True)
    estimate = EstimateSerializer(source="place", read_only=True)
    created_at = serializers.DateTimeField(read_only=True)
    updated_at = serializers.DateTimeField(read_only=True)


class QueueFilter(Changed):
    """Waiting claims by tenant and time of change."""

    tenant = Named(Tenant.objects, "slug")

    class Meta:
        model = Claim
        fields = ["tenant", "updated_since"]


class PoolQueue(ListMixin, ApiView):
    """A pool's queue."""

    serializer_class = QueuedSerializer
    filterset_class = QueueFilter
    pagination_class = InOrder
    read_scope = "claims:read"

    def get_queryset(self) -> Any:
        """Return the waiting claims that the caller may see."""
        return Claim.objects.visible_to(self.principal).filter(state__in=WAITING).select_related("tenant")

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
