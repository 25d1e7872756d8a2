"""Delivery of messages: at least once each, with retries for three days.

One sender runs at a time, in one worker. It loops as follows, with HTTP in threads that do not use the database:

1. Take each free webhook's first due message, by a lease: a killed sender's messages become due again.
2. Post each in a thread.
3. Record the results, in the messages and their webhooks.

A failing webhook is paused as a whole: otherwise a hanging one would occupy a thread for each of its messages.
"""

import random
import time
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from datetime import datetime, timedelta

from django.db import transaction
from django.db.models import F, OuterRef, Q, Subquery
from django.utils import timezone

from apps.quotas.models import Webhook, WebhookDelivery
from apps.quotas.models.webhook import TEST, DeliveryState, WebhookFormat
from apps.quotas.principals import SYSTEM
from apps.quotas.services import audit
from apps.quotas.services.webhooks import posting, signing
from apps.quotas.services.webhooks.formats import rendering
from apps.quotas.services.webhooks.posting import Answer
from gpucloud import counters
from gpucloud.locks import exclusive

# Pauses after failed attempts; none after the last. The sum is three days, a receiver's long weekend.
WAITS = (5, 30, 300, 1800, 2 * 3600, 5 * 3600, 10 * 3600, 14 * 3600, 20 * 3600, 20 * 3600)
# Pause of the webhook as a whole, doubled with each consecutive failure.
PAUSE_SECONDS, MOST_PAUSE_SECONDS = 5, 300
DISABLED_AFTER = timedelta(days=3)
# Longer than any attempt takes.
LEASE = timedelta(seconds=60)
AT_ONCE = 32
# Then the worker is free for other tasks, and a hint or the beat starts the next run.
TURN_SECONDS = 60.0
# Poll interval for new messages, even while receivers hang.
LOOK_SECONDS = 0.5


def deliver() -> int:
    """Deliver until nothing is due; return the number of attempts. A second concurrent call does nothing."""
    with exclusive("webhooks") as free:
        if not free:
            return 0
        with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="webhook") as threads:
            return _turn(threads)


def _turn(threads: ThreadPoolExecutor) -> int:
    flying: dict[Future[Answer], WebhookDelivery] = {}
    made, end = 0, time.monotonic() + TURN_SECONDS
    while True:
        busy = [delivery.webhook_id for delivery in flying.values()]
        for key in _due_deliveries(but=busy, most=AT_ONCE - len(busy)) if time.monotonic() < end else ():
            if delivery := _take(key):
                flying[_start(threads, delivery)] = delivery
                made += 1
        if not flying:
            return made
        done, _ = wait(flying, timeout=LOOK_SECONDS, return_when=FIRST_COMPLETED)
        for future in done:
            _record(flying.pop(future), future.result())


def _start(threads: ThreadPoolExecutor, delivery: WebhookDelivery) -> Future[Answer]:
    hook, now = delivery.webhook, timezone.now()
    body = rendering.body(delivery, now)
    headers = signing.headers(hook, message=f"msg_{delivery.uid.hex}", body=body, now=now) if hook.signed else {}
    return threads.submit(posting.post, hook.url, body, headers)


def _due_deliveries(*, but: list[int], most: int) -> list[int]:
    """Return the first due message of each webhook that is not paused."""
    now = timezone.now()
    mine = WebhookDelivery.objects.filter(Q(webhook__enabled=True) | Q(kind=TEST), webhook=OuterRef("pk"))
    first = mine.filter(state=DeliveryState.PENDING, next_attempt_at__lte=now).order_by("next_attempt_at", "pk")
    hooks = Webhook.objects.filter(Q(not_before=None) | Q(not_before__lte=now)).exclude(pk__in=but)
    found = hooks.annotate(first=Subquery(first.values("pk")[:1])).filter(first__isnull=False)
    return list(found.order_by("pk").values_list("first", flat=True)[:most])


@transaction.atomic
def _take(key: int) -> WebhookDelivery | None:
    """Return the message under a lease; None if it is gone or leased by another sender."""
    rows = WebhookDelivery.objects.select_for_update(of=("self",), skip_locked=True).select_related("webhook")
    now = timezone.now()
    delivery = rows.filter(pk=key, state=DeliveryState.PENDING, next_attempt_at__lte=now).first()
    return delivery and delivery.change(attempts=delivery.attempts + 1, next_attempt_at=now + LEASE)


@transaction.atomic
def _record(seen: WebhookDelivery, answer: Answer) -> None:
    """Record an attempt's result in message and webhook. Order of locks: the webhook, then the message."""
    hook = Webhook.objects.select_for_update(of=("self",)).select_related("tenant").filter(pk=seen.webhook_id).first()
    delivery = WebhookDelivery.objects.select_for_update().filter(pk=seen.pk, version=seen.version).first()
    if hook is None or delivery is None:
        return  # removed meanwhile, or leased by another sender
    now = timezone.now()
    said = {"status_code": answer.status, "error": _reason(hook, answer)}
    if answer.delivered:
        counters.WEBHOOK_ATTEMPTS.add("delivered")
        delivery.change(state=DeliveryState.DELIVERED, next_attempt_at=None, delivered_at=now, **said)
        if hook.failures:
            _keep(hook, failures=0, failing_since=None, not_before=None)
        return
    if delivery.attempts > len(WAITS):
        counters.WEBHOOK_ATTEMPTS.add("failed")
        delivery.change(state=DeliveryState.FAILED, next_attempt_at=None, **said)
    else:
        counters.WEBHOOK_ATTEMPTS.add("retried")
        seconds = max(WAITS[delivery.attempts - 1], answer.retry_after_seconds)
        # Jitter spreads retries after a common outage.
        again = now + timedelta(seconds=seconds * random.uniform(1, 1.1))  # noqa: S311 - no secret
        delivery.change(next_attempt_at=again, **said)
    _record_failure(hook, answer, now)


def _reason(hook: Webhook, answer: Answer) -> str | None:
    """Return the error with advice, if its format knows one for the status."""
    advice = rendering.ADVICE.get((WebhookFormat(hook.format), answer.status)) if answer.status else None
    return f"{answer.error} {advice}" if advice else answer.error


def _record_failure(hook: Webhook, answer: Answer, now: datetime) -> None:
    # 429 and 503 name a time for the whole receiver, not only for this message.
    pause = max(min(PAUSE_SECONDS * 2 ** min(hook.failures, 10), MOST_PAUSE_SECONDS), answer.retry_after_seconds)
    since = hook.failing_since or now
    _keep(hook, failures=F("failures") + 1, failing_since=since, not_before=now + timedelta(seconds=pause))
    if hook.enabled and (answer.gone or since <= now - DISABLED_AFTER):
        why = "Its server answered 410 Gone." if answer.gone else f"It has failed since {since:%Y-%m-%d %H:%M} UTC."
        hook.refresh_from_db()
        hook.change(enabled=False, disabled_reason=why)
        audit.record(SYSTEM, "webhook.disable", hook, after={"why": why, "error": answer.error})


def _keep(hook: Webhook, **values: object) -> None:
    """Update the webhook without a new version: delivery results do not change its entity tag."""
    Webhook.objects.filter(pk=hook.pk).update(updated_at=timezone.now(), **values)


def drop_old(*, before: datetime) -> int:
    """Delete messages from before this time, whatever their state; return their number."""
    return WebhookDelivery.objects.filter(created_at__lt=before).delete()[0]
