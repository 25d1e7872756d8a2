"""/webhooks/: addresses that receive signed messages about events, and the deliveries of those messages."""

import json
from typing import Any

from django.shortcuts import get_object_or_404
from django.utils import timezone
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from apps.quotas.api.methods import changes, lists, removes, shows
from apps.quotas.api.serializers import TenantBySlug
from apps.quotas.api.views import ApiView, ListMixin
from apps.quotas.idempotency import idempotent
from apps.quotas.models import EventKind, Webhook, WebhookDelivery
from apps.quotas.models.webhook import WebhookFormat
from apps.quotas.services.webhooks import hooks
from apps.quotas.services.webhooks.formats import rendering
from gpucloud.api import etags, shown
from gpucloud.api.filters import filters_of
from gpucloud.api.serializers import Strict
from gpucloud.api.shown import Columns


class WebhookSerializer(Strict):
    """An address and its subscribed events."""

    uid = shown.uid()
    tenant = TenantBySlug(
        allow_null=True, default=None, help_text="Null: the whole platform (operators only). Never changes."
    )
    url = serializers.CharField(
        max_length=2000,
        help_text="https; to the public internet, or to networks that an operator's setting names. Of slack and teams"
        " it is a secret: answers show the server and the last four characters.",
    )
    format = serializers.ChoiceField(
        choices=WebhookFormat.choices,
        default=WebhookFormat.GPUCLOUD,
        help_text="Format of its messages; never changes.",
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
    disabled_reason = shown.text(
        "Reason why it was disabled automatically; enable it again when that is fixed.", null=True
    )
    failures = shown.integer("Number of consecutive failed attempts.")
    failing_since = shown.time("Time of the first failure in a row; after three days it is disabled.", null=True)
    not_before = shown.time("Time of the next attempt after a failure.", null=True)
    rotated_at = shown.time("Time of the last rotation; for a day the previous secret signs as well.", null=True)
    columns = Columns(Webhook, "created_by version created_at updated_at")

    def to_representation(self, instance: Webhook) -> dict[str, Any]:
        """Return the webhook with its URL as it may be shown."""
        return {**super().to_representation(instance), "url": rendering.shown_url(instance)}


class WebhookChangeSerializer(WebhookSerializer):
    """Changeable fields of a webhook."""

    tenant = shown.text(null=True, source="tenant.slug")
    format = shown.choice(WebhookFormat.choices)


class NewWebhookSerializer(WebhookSerializer):
    """A webhook with its signing secret, which is shown only once."""

    secret = shown.text("Null in a repeated answer, and for formats that are not signed.", null=True)


class DeliverySerializer(Strict):
    """One message to a webhook, with its result."""

    uid = shown.uid()
    kind = shown.text("One of the webhook's events, or `webhook.test`.")
    columns_1 = Columns(WebhookDelivery, "state attempts next_attempt_at")
    status_code = shown.integer("Status of the last response; null: none.", null=True)
    error = shown.text("Error of the last attempt.", null=True)
    delivered_at = shown.time(null=True)
    payload = serializers.SerializerMethodField(help_text="The event, as JSON.")
    message = serializers.SerializerMethodField(
        help_text="The body in the format of the webhook, as JSON; null: it is `payload`."
    )
    changed = Columns(WebhookDelivery, "version created_at updated_at")

    def get_payload(self, row: WebhookDelivery) -> dict[str, Any]:
        """Return the body: `type`, `timestamp` and `data`."""
        body: dict[str, Any] = json.loads(row.body)
        return body

    def get_message(self, row: WebhookDelivery) -> Any:
        """Return the body of a format that is not our own."""
        return None if row.webhook.signed else rendering.message(row, timezone.now())


class WebhookView(ApiView):
    """Base of the webhook views."""

    serializer_class: Any = WebhookSerializer
    lookup_key = "uid"
    read_scope, write_scope = "webhooks:read", "webhooks:write"
    queryset = Webhook.objects.select_related("tenant")

    def show_once(self, hook: Webhook, secret: str | None) -> Response:
        """Return the webhook with its secret, which is shown once."""
        headers = {
            "ETag": etags.etag(hook.version),
            "Location": f"/api/v1/webhooks/{hook.uid}/",
            "Cache-Control": "no-store",
        }
        return Response({**WebhookSerializer(hook).data, "secret": secret}, status=201, headers=headers)


class WebhookList(WebhookView, ListMixin):
    """Webhooks."""

    filterset_class = filters_of(Webhook, "enabled", tenant="tenant__slug")
    get = lists("List webhooks (a tenant's admins); their secrets are never shown again.")

    @extend_schema(responses={201: NewWebhookSerializer})
    @idempotent
    def post(self, request: Request) -> Response:
        """Create a webhook (a tenant's admins). The response is the only place that shows its secret."""
        return self.show_once(*hooks.create(principal=self.principal, **self.parse_body(request)))


class WebhookDetail(WebhookView):
    """One webhook."""

    serializer_class: Any = WebhookChangeSerializer
    get = shows("Show a webhook, without its secret.")
    patch = changes(hooks.change, "hook", "Change a webhook's address or events, or enable it again.")
    delete = removes(hooks.delete, "hook", "Remove a webhook and its pending messages.")


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
    filterset_class = filters_of(WebhookDelivery, "state", "kind")
    read_scope = "webhooks:read"

    def get_queryset(self) -> Any:
        """Return the deliveries of webhooks visible to the caller."""
        return WebhookDelivery.objects.filter(webhook__in=Webhook.objects.visible_to(self.principal)).select_related(
            "webhook"
        )

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
