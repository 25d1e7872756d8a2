"""Metrics of pending webhook messages; the outcomes of attempts are counters (`gpucloud.counters`)."""

from collections.abc import Iterator

from django.db.models import Count, Min
from django.utils import timezone
from prometheus_client.core import GaugeMetricFamily

from apps.quotas.models import WebhookDelivery
from apps.quotas.models.webhook import DeliveryState


def messages() -> Iterator[GaugeMetricFamily]:
    """Yield the number of messages pending for enabled webhooks, and the age of the oldest; one query."""
    pending = WebhookDelivery.objects.filter(state=DeliveryState.PENDING, webhook__enabled=True)
    found = pending.aggregate(number=Count("pk"), since=Min("created_at"))
    age = (timezone.now() - found["since"]).total_seconds() if found["since"] else 0.0
    words = "Messages that their webhooks have not accepted yet."
    yield GaugeMetricFamily("gpucloud_webhook_messages_pending", words, value=found["number"])
    words = "Age of the oldest message that its webhook has not accepted yet; 0 if there is none."
    yield GaugeMetricFamily("gpucloud_webhook_oldest_seconds", words, value=age)
