"""Outbox of messages to webhooks, written in the transaction of the event.

So there is no event without its messages, and no message of a rolled-back event. Workers send after the commit; they
poll the rows, because the hint to them may be lost.
"""

import json
import logging
from datetime import datetime
from typing import Any

from celery import current_app
from django.db import transaction
from django.db.models import Q, QuerySet
from django.utils import timezone
from kombu.exceptions import OperationalError

from apps.quotas.models import Tenant, Webhook, WebhookDelivery
from apps.quotas.services.webhooks.formats import rendering
from gpucloud.fastpath.compiled_queries import compiled_query

logger = logging.getLogger(__name__)

# By name, because tasks import services.
DELIVER = "apps.quotas.tasks.deliver_webhooks"

SUBSCRIPTION = ("pk", "events", "format")
Subscription = tuple[int, list[str], str]


@compiled_query
def _listening(tenant: Any) -> QuerySet[Webhook, Subscription]:
    return Webhook.every.filter(Q(tenant=tenant) | Q(tenant=None), enabled=True).values_list(*SUBSCRIPTION)


@compiled_query
def _own(tenant: Any) -> QuerySet[Webhook, Subscription]:
    return Webhook.every.filter(tenant=tenant, enabled=True).values_list(*SUBSCRIPTION)


@compiled_query
def _of_platform() -> QuerySet[Webhook, Subscription]:
    return Webhook.every.filter(tenant=None, enabled=True).values_list(*SUBSCRIPTION)


def tell(kind: str, *, tenant: Tenant | None, platform: bool = True, **data: Any) -> int:
    """Write a message to each subscribed webhook, in the caller's transaction; return their number.

    The platform's webhooks receive every tenant's events too, unless `platform` is False because they have them
    already.
    """
    hooks = [key for key, events, form in _subscriptions(tenant, platform) if rendering.wants(form, events, kind)]
    if hooks:
        write(hooks, kind, {"tenant": tenant and tenant.slug, **data})
    return len(hooks)


def _subscriptions(tenant: Tenant | None, platform: bool) -> list[Subscription]:
    if tenant is None:
        return _of_platform()
    return _listening(tenant.pk) if platform else _own(tenant.pk)


def write(hooks: list[int], kind: str, data: dict[str, Any]) -> list[WebhookDelivery]:
    """Write one message to each of these webhooks, due now."""
    now = timezone.now()
    body = json.dumps({"type": kind, "timestamp": now.isoformat(), "data": data}, default=_plain, separators=(",", ":"))
    rows = [WebhookDelivery(webhook_id=key, kind=kind, body=body, next_attempt_at=now) for key in hooks]
    made = WebhookDelivery.objects.bulk_create(rows)
    transaction.on_commit(hint)
    return made


def hint() -> None:
    """Have a worker deliver now. A lost hint is harmless: workers poll every few seconds."""
    try:
        current_app.send_task(DELIVER, retry=False, expires=4)
    except (OperationalError, OSError) as error:
        logger.warning("%s not queued: %s", DELIVER, error)


def _plain(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime) else str(value)
