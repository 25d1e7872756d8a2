"""The view of /utilization/."""

from collections.abc import Mapping
from typing import Any

import msgspec
from django.shortcuts import get_object_or_404
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.exceptions import ValidationError
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response

from apps.accounting.services import utilization
from apps.nodes.models import Gpu
from apps.quotas.api.views import ApiView
from apps.quotas.models import Tenant
from apps.scheduling.models import Assignment, Claim
from gpucloud.api import shown
from gpucloud.api.serializers import Question, Strict


def _some(words: str) -> serializers.ListField:
    """Return a list that series without borrowed memory do not have."""
    return serializers.ListField(child=serializers.FloatField(allow_null=True), required=False, help_text=words)


class SeriesSerializer(Strict):
    """Measurements of one assignment or one GPU; the lists have one length."""

    claim = shown.uid(null=True)
    assignment = shown.uid(null=True)
    gpu_uuid = shown.text()
    times = serializers.ListField(child=serializers.FloatField(), help_text="Unix seconds.")
    core_percent = serializers.ListField(child=serializers.FloatField())
    core_limit_percent = serializers.ListField(child=serializers.FloatField(allow_null=True))
    throttled_percent = serializers.ListField(child=serializers.FloatField(allow_null=True))
    memory_mib = serializers.ListField(child=serializers.FloatField())
    memory_limit_mib = serializers.ListField(child=serializers.FloatField(allow_null=True))
    power_watts = serializers.ListField(child=serializers.FloatField(allow_null=True), required=False)
    borrowed_mib = _some(
        "Memory of the GPU that the assignment has beyond what is promised to it; of a GPU, that all its assignments "
        "have so. This and the next three are left out unless it borrowed memory."
    )
    memory_out_mib = _some("Memory of the assignment in host memory, because others of its GPU use theirs.")
    moved_mib_per_second = _some("Memory that moved between GPU and host memory, in both directions.")
    stood_percent = _some("Share of the time for which its programs stood still while memory moved.")
    age_seconds = serializers.FloatField(allow_null=True, help_text="The age of the newest sample.")


class UtilizationSerializer(Strict):
    """The answer of /utilization/."""

    series = SeriesSerializer(many=True, read_only=True)


class WindowQuestion(Question):
    """The parameters of a window."""

    claim = serializers.UUIDField(required=False)
    gpu = serializers.CharField(required=False, help_text="A GPU's uuid (operators).")
    node = serializers.CharField(required=False, help_text="A node's name (operators).")
    tenant = serializers.CharField(required=False)
    from_ = serializers.DateTimeField(required=False, help_text="Without it: the latest sample and its age.")
    to = serializers.DateTimeField(required=False)
    step = serializers.IntegerField(
        min_value=1,
        max_value=86400,
        default=None,
        allow_null=True,
        help_text="Seconds a point; chosen by the window unless given.",
    )

    def to_internal_value(self, data: Any) -> Any:
        """Treat an empty moment as none."""
        return super().to_internal_value(
            {name: text for name, text in data.items() if text or name not in ("from", "to")}
        )


class Curves(JSONRenderer):
    """A renderer for tens of thousands of numbers: it takes a tenth of the time of Django REST framework's own."""

    def render(
        self, data: Any, accepted_media_type: str | None = None, renderer_context: Mapping[str, Any] | None = None
    ) -> bytes:
        """Render the curves; a refusal is rendered as everywhere."""
        if "series" not in data:
            refusal: bytes = super().render(data, accepted_media_type, renderer_context)
            return refusal
        return msgspec.json.encode(data)


class Utilization(ApiView):
    """Measured utilization."""

    renderer_classes = [Curves]

    serializer_class = UtilizationSerializer
    read_scope = "utilization:read"

    @extend_schema(parameters=WindowQuestion.parameters())
    def get(self, request: Request) -> Response:
        """Show use against limits of a claim, a GPU, a node or a tenant (name one)."""
        values = WindowQuestion.read(request)
        times = {"start": values.pop("from", None), "end": values.pop("to", None), "step_seconds": values.pop("step")}
        if len(values) != 1:
            raise ValidationError({"non_field_errors": ["Name one of claim, gpu, node, tenant."]})
        return Response({"series": self._series(*values.popitem(), times)})

    def _series(self, kind: str, key: Any, times: dict[str, Any]) -> list[dict[str, Any]]:
        assignments = Assignment.objects.select_related("claim", "gpu")
        if kind == "claim":
            claim = get_object_or_404(Claim.objects.visible_to(self.principal), uid=key)
            return utilization.of_assignments(assignments.filter(claim=claim), **times)
        if kind == "tenant":
            tenant = get_object_or_404(Tenant.objects.visible_to(self.principal), slug=key)
            live = assignments.filter(claim__tenant=tenant).live()
            return utilization.of_assignments(live, **times)
        self.principal.require_operator()
        gpus = Gpu.objects.filter(uuid=key) if kind == "gpu" else Gpu.objects.filter(node__name=key)
        if not gpus:
            raise ValidationError({kind: [f"There is no {kind} {key}."]})
        return utilization.of_gpus(gpus, **times)
