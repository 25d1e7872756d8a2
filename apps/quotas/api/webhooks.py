"""/webhooks/: addresses that receive signed messages about events, and the deliveries of those messages."""

import json
from typing import Any

from django.shortcuts import get_object_or_404
from django_filters import rest_framework as filters
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from apps.quotas.api.serializers import TenantBySlug
from apps.quotas.api.views import ApiView, ListMixin
from apps.quotas.idempotency import idempotent
from apps.quotas.models import EventKind, Webhook, WebhookDelivery
from apps.quotas.models.webhook import DeliveryState
from apps.quotas.services.webhooks import hooks
from gpucloud.api import etags
from gpucloud.api.filters import Changed
from gpucloud.api.serializers import Strict


class WebhookSerializer(Strict):
    """An address and its subscribed events."""

    uid = serializers.UUIDField(read_only=True)
    tenant = TenantBySlug(
        allow_null=True, default=None, help_text="Null: the whole platform (operators only). Never changes."
    )
    url = serializers.CharField(
        max_length=2000, help_text="https; to the public internet, or to networks that an operator's setting names."
    )
    events = serializers.ListField(
        child=serializers.ChoiceField(choices=EventKind.choices),
        min_length=1,
        max_length=50,
        help_text="Subscribed events.",
    )
    description = serializers.CharField(max_length=200, allow_blank=True, default="", help_text="For people.")
    enabled = serializers.BooleanField(
        default=True, help_text="False: new events are skipped, and pending deliveries wait."
    )
    disabled_reason = serializers.CharField(
        read_only=True,
        allow_null=True,
        help_text="Reason why it was disabled automatically; enable it again when that is fixed.",
    )
    failures = serializers.IntegerField(read_only=True, help_text="Number of consecutive failed attempts.")
    failing_since = serializers.DateTimeField(
        read_only=True,
        allow_null=True,
        help_text="Time of the first failure in a row; after three days it is disabled.",
    )
    not_before = serializers.DateTimeField(
        read_only=True, allow_null=True, help_text="Time of the next attempt after a failure."
    )
    rotated_at = serializers.DateTimeField(
        read_only=True,
        allow_null=True,
        help_text="Time of the last rotation; for a day the previous secret signs as well.",
    )
    created_by = serializers.CharField(read_only=True)
    version = serializers.IntegerField(read_only=True)
    created_at = serializers.DateTimeField(read_only=True)
    updated_at = serializers.DateTimeField(read_only=True)


class WebhookChangeSerializer(WebhookSerializer):
    """Changeable fields of a webhook."""

    tenant = serializers.CharField(source="tenant.slug", read_only=True, allow_null=True)  # type: ignore[assignment]


class NewWebhookSerializer(WebhookSerializer):
    """A webhook with its signing secret, which is shown only once."""

    secret = serializers.CharField(read_only=True, allow_null=True, help_text="Null in a repeated answer.")


class DeliverySerializer(Strict):
    """One message to a webhook, with its result."""

    uid = serializers.UUIDField(read_only=True)
    kind = serializers.CharField(read_only=True, help_text="One of the webhook's events, or `webhook.test`.")
    state = serializers.ChoiceField(choices=DeliveryState.choices, read_only=True)
    attempts = serializers.IntegerField(read_only=True)
    next_attempt_at = serializers.DateTimeField(read_only=True, allow_null=True)
    status_code = serializers.IntegerField(
        read_only=True, allow_null=True, help_text="Status of the last response; null: none."
    )
    error = serializers.CharField(read_only=True, allow_null=True, help_text="Error of the last attempt.")
    delivered_at = serializers.DateTimeField(read_only=True, allow_null=True)
    payload = serializers.SerializerMethodField(help_text="The body, as JSON.")
    version = serializers.IntegerField(read_only=True)
    created_at = serializers.DateTimeField(read_only=True)
    updated_at = serializers.DateTimeField(read_only=True)

    def get_payload(self, row: WebhookDelivery) -> dict[str, Any]:
        """Return the body: `type`, `timestamp` and `data`."""
        body: dict[str, Any] = json.loads(row.body)
        return body


class WebhookFilter(Changed):
    """Webhooks by tenant and state."""

    tenant = filters.CharFilter(field_name="tenant__slug")

    class Meta:
        model = Webhook
        fields = ["tenant", "enabled", "updated_since"]


class DeliveryFilter(Changed):
    """Deliveries by state and kind."""

    class Meta:
        model = WebhookDelivery
        fields = ["state", "kind", "updated_since"]


class WebhookView(ApiView):
    """Base of the webhook views."""

    serializer_class: Any = WebhookSerializer
    lookup_key = "uid"
    read_scope, write_scope = "webhooks:read", "webhooks:write"

    def get_queryset(self) -> Any:
        """Return the rows visible to the caller."""
        return Webhook.objects.visible_to(self.principal).select_related("tenant")

    def show_once(self, hook: Webhook, secret: str) -> Response:
        """Return the webhook with its secret, which is shown once."""
        headers = {
            "ETag": etags.etag(hook.version),
            "Location": f"/api/v1/webhooks/{hook.uid}/",
            "Cache-Control": "no-store",
        }
        return Response({**WebhookSerializer(hook).data, "secret": secret}, status=201, headers=headers)


class WebhookList(WebhookView, ListMixin):
    """Webhooks."""

    filterset_class = WebhookFilter

    def get(self, request: Request) -> Response:
        """List webhooks (a tenant's admins); their secrets are never shown again."""
        return self.list_page(self.get_queryset())

    @extend_schema(responses={201: NewWebhookSerializer})
    @idempotent
    def post(self, request: Request) -> Response:
        """Create a webhook (a tenant's admins). The response is the only place that shows its secret."""
        return self.show_once(*hooks.create(principal=self.principal, **self.parse_body(request)))


class WebhookDetail(WebhookView):
    """One webhook."""

    serializer_class: Any = WebhookChangeSerializer

    def get(self, request: Request, uid: str) -> Response:
        """Show a webhook, without its secret."""
        return self.answer(self.find(uid))

    def patch(self, request: Request, uid: str) -> Response:
        """Change a webhook's address or events, or enable it again."""
        hook = self.find(uid)
        values, versions = self.parse_body(request, partial=True), etags.if_match(request)
        return self.answer(hooks.change(principal=self.principal, hook=hook, versions=versions, **values))

    @extend_schema(responses={204: None})
    def delete(self, request: Request, uid: str) -> Response:
        """Remove a webhook and its pending messages."""
        hooks.delete(principal=self.principal, hook=self.find(uid), versions=etags.if_match(request))
        return Response(status=204)


class WebhookRotation(WebhookView):
    """Rotation of a webhook's secret."""

    @extend_schema(request=None, responses={201: NewWebhookSerializer})
    @idempotent
    def post(self, request: Request, uid: str) -> Response:
        """Create a new secret, shown once. For a day messages are signed with both."""
        self.without_body(request)
        versions = etags.if_match(request)
        return self.show_once(*hooks.rotate(principal=self.principal, hook=self.find(uid), versions=versions))


class WebhookTest(WebhookView):
    """Test message of a webhook."""

    serializer_class: Any = DeliverySerializer

    @extend_schema(request=None, responses={201: DeliverySerializer})
    @idempotent
    def post(self, request: Request, uid: str) -> Response:
        """Send a test message, even if the webhook is disabled. Its delivery shows the result a moment later."""
        self.without_body(request)
        versions = etags.if_match(request)
        delivery = hooks.send_test(principal=self.principal, hook=self.find(uid), versions=versions)
        return self.answer(delivery, status=201)


class DeliveryList(ListMixin):
    """A webhook's deliveries."""

    serializer_class = DeliverySerializer
    filterset_class = DeliveryFilter
    read_scope = "webhooks:read"

    def get_queryset(self) -> Any:
        """Return the deliveries of webhooks visible to the caller."""
        return WebhookDelivery.objects.filter(webhook__in=Webhook.objects.visible_to(self.principal))

    def get(self, request: Request, uid: str) -> Response:
        """List the messages to a webhook, newest first; kept for a month."""
        hook = get_object_or_404(Webhook.objects.visible_to(self.principal), uid=uid)
        return self.list_page(self.get_queryset().filter(webhook=hook))


class DeliveryAgain(WebhookView):
    """Redelivery of a message."""

    serializer_class: Any = DeliverySerializer

    @extend_schema(request=None, responses={200: DeliverySerializer})
    @idempotent
    def post(self, request: Request, uid: str, delivery: str) -> Response:
        """Send a delivered or failed message again, with the same id."""
        self.without_body(request)
        hook, versions = self.find(uid), etags.if_match(request)
        row = get_object_or_404(WebhookDelivery.objects.filter(webhook=hook), uid=delivery)
        return self.answer(hooks.redeliver(principal=self.principal, hook=hook, delivery=row, versions=versions))
