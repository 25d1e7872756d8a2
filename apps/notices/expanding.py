"""Events of the outbox become lines for the people who chose them, exactly once."""

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from django.db import transaction
from django.utils import timezone

from apps.notices.models import KIND_OF, URGENT, Notice, NoticeKind, NoticeSettings, When
from apps.quotas.models import EventKind, Tenant
from apps.quotas.models.tenant import Membership
from apps.quotas.models.webhook import PEOPLE, DeliveryState, WebhookDelivery
from apps.quotas.services.webhooks.formats.words import Event, words_of
from apps.scheduling.models import Claim
from gpucloud import schedules

# Events of one transaction: a lost rack is a thousand.
AT_ONCE = 500


def expand() -> int:
    """Write the lines of all recorded events; return the number of events."""
    done = 0
    while number := _expand_some():
        done += number
    return done


@transaction.atomic
def _expand_some() -> int:
    """Write the lines of some events and mark these done, in one transaction.

    A row is locked by one worker, and others skip it: each event gives a person one line, whoever is killed.
    """
    rows = WebhookDelivery.objects.select_for_update(of=("self",), skip_locked=True)
    found = list(rows.filter(webhook__format=PEOPLE, state=DeliveryState.PENDING).order_by("pk")[:AT_ONCE])
    events = [Event.parse(json.loads(row.body)) for row in found]
    Notice.objects.bulk_create(_lines(events))
    WebhookDelivery.objects.filter(pk__in=[row.pk for row in found]).update(
        state=DeliveryState.DELIVERED, next_attempt_at=None, delivered_at=timezone.now(), attempts=1
    )
    return len(found)


def _lines(events: Sequence[Event]) -> list[Notice]:
    slugs = {event.data.get("tenant") for event in events}
    tenants = {tenant.slug: tenant for tenant in Tenant.objects.filter(slug__in=slugs - {None})}
    members = _members(tenants.values())
    makers = _makers(events)
    now = timezone.now()
    lines = []
    for event in events:
        kind = KIND_OF.get(EventKind(event.kind))
        tenant = tenants.get(event.data.get("tenant") or "")
        if kind is None or (tenant is None and event.data.get("tenant")):
            continue  # the tenant was removed meanwhile
        for one in members[tenant.pk if tenant else None]:
            when = one.chosen.get(kind)
            if when and _concerns(one, event, makers):
                words = words_of(event)
                facts = {"title": words.title, "detail": words.sentence, "url": words.url, "at": event.at}
                due = due_at(one, kind, when, now)
                lines.append(Notice(user=one.user, tenant=tenant, kind=kind, due_at=due, **facts))
    return lines


def _members(tenants: Iterable[Tenant]) -> dict[int | None, list[NoticeSettings]]:
    """Return the choices of each tenant's members, and of the operators under None."""
    found: dict[int | None, list[NoticeSettings]] = defaultdict(list)
    rows = {row.user_id: row for row in NoticeSettings.objects.filter(user__is_active=True).select_related("user")}
    for tenant, user in Membership.objects.filter(tenant__in=tenants, user__in=rows).values_list("tenant", "user"):
        found[tenant].append(rows[user])
    found[None] = [row for row in rows.values() if row.user.is_operator]
    return found


def _makers(events: Iterable[Event]) -> dict[str, int | None]:
    uids = {str(claim["uid"]) for event in events if (claim := event.data.get("claim"))}
    return {str(uid): user for uid, user in Claim.objects.filter(uid__in=uids).values_list("uid", "user_id")}


def _concerns(one: NoticeSettings, event: Event, makers: dict[str, Any]) -> bool:
    if event.kind == EventKind.BUDGET_THRESHOLD:
        return int(event.data["threshold_percent"]) >= one.budget_percent
    claim = event.data.get("claim")
    return claim is None or one.all_claims or makers.get(str(claim["uid"])) == one.user_id


def due_at(one: NoticeSettings, kind: str, when: str, now: datetime) -> datetime:
    """Return when a line may be mailed: now or at the hour of the digest, and after the quiet hours."""
    due = _next_digest(one, now) if when == When.DIGEST else now
    if not one.quiet_hours or (when == When.NOW and one.urgent_passes and NoticeKind(kind) in URGENT):
        return due
    quiet = quiet_of(one)
    # A window that never closes would keep everything for ever.
    return quiet.closes_at(due) or due


def quiet_of(one: NoticeSettings) -> schedules.Schedule:
    """Return the quiet hours, in the person's own time zone if they name none."""
    found = schedules.parse(one.quiet_hours)
    return found if len(one.quiet_hours.split()) == 3 else replace(found, zone=zone_of(one))


def zone_of(one: NoticeSettings) -> ZoneInfo:
    """Return the person's time zone."""
    return ZoneInfo(one.user.time_zone or "UTC")


def _next_digest(one: NoticeSettings, now: datetime) -> datetime:
    local = now.astimezone(zone_of(one))
    today = local.replace(hour=one.digest_hour, minute=0, second=0, microsecond=0)
    return today if today > local else today + timedelta(days=1)
