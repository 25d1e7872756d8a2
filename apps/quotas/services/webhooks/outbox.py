"""Writing down what webhooks are to be told, in the transaction of the fact itself.

So there is no fact without its messages, and no message of what was taken back. Sending comes after the commit, by
whoever looks at the rows: the hint to the workers may be lost.
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
from gpucloud.fastpath.compiled_queries import compiled_query

logger = logging.getLogger(__name__)

# By its name: tasks call services.
DELIVER = "apps.quotas.tasks.deliver_webhooks"


@compiled_query
def _listening(tenant: Any) -> QuerySet[Webhook, tuple[int, list[str]]]:
    return Webhook.objects.filter(Q(tenant=tenant) | Q(tenant=None), enabled=True).values_list("pk", "events")


@compiled_query
def _own(tenant: Any) -> QuerySet[Webhook, tuple[int, list[str]]]:
    return Webhook.objects.filter(tenant=tenant, enabled=True).values_list("pk", "events")


@compiled_query
def _of_platform() -> QuerySet[Webhook, tuple[int, list[str]]]:
    return Webhook.objects.filter(tenant=None, enabled=True).values_list("pk", "events")


def tell(kind: str, *, tenant: Tenant | None, platform: bool = True, **data: Any) -> int:
    """Write a message to each webhook that wants to know, in the caller's transaction; returns how many.

    The platform's webhooks are told of every tenant's events too, unless `platform` says that they know already.
    """
    hooks = [key for key, events in _subscriptions(tenant, platform) if kind in events]
    if hooks:
        write(hooks, kind, {"tenant": tenant and tenant.slug, **data})
    return len(hooks)


def _subscriptions(tenant: Tenant | None, platform: bool) -> list[tuple[int, list[str]]]:
    if tenant is None:
        return _of_platform()
    return _listening(tenant.pk) if platform else _own(tenant.pk)


def write(hooks: list[int], kind: str, data: dict[str, Any]) -> list[WebhookDelivery]:
    """One message to each of these webhooks, due now."""
    now = timezone.now()
    body = json.dumps({"type": kind, "timestamp": now.isoformat(), "data": data}, default=_plain, separators=(",", ":"))
    rows = [WebhookDelivery(webhook_id=key, kind=kind, body=body, next_attempt_at=now) for key in hooks]
    made = WebhookDelivery.objects.bulk_create(rows)
    transaction.on_commit(hint)
    return made


def hint() -> None:
    """Have a worker look now. Repair: one looks by itself every few seconds."""
    try:
        current_app.send_task(DELIVER, retry=False, expires=4)
    except (OperationalError, OSError) as error:
        logger.warning("%s not queued: %s", DELIVER, error)


def _plain(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime) else str(value)
