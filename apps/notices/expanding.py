"""Events of the outbox become lines for the people who chose them, exactly once."""

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from django.db import transaction
from django.utils import timezone

from apps.jobs.models import Job
from apps.notices.models import KIND_OF, Notice, NoticeSettings
from apps.notices.timing import due_at
from apps.quotas.models import EventKind, Tenant
from apps.quotas.models.tenant import Membership
from apps.quotas.models.webhook import PEOPLE, DeliveryState, WebhookDelivery
from apps.quotas.services.webhooks.formats.words import Event, words_of
from apps.scheduling.models import Claim

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
    """Return who made each claim and job, by its uid."""
    claims = Claim.objects.filter(uid__in=_uids(events, "claim")).values_list("uid", "user_id")
    jobs = Job.objects.filter(uid__in=_uids(events, "job")).values_list("uid", "user_id")
    return {str(uid): user for uid, user in (*claims, *jobs)}


def _uids(events: Iterable[Event], part: str) -> set[str]:
    return {str(about["uid"]) for event in events if (about := event.data.get(part))}


def _concerns(one: NoticeSettings, event: Event, makers: dict[str, Any]) -> bool:
    if event.kind == EventKind.BUDGET_THRESHOLD:
        return int(event.data["threshold_percent"]) >= one.budget_percent
    about = event.data.get("job") or event.data.get("claim")
    return about is None or one.all_claims or makers.get(str(about["uid"])) == one.user_id
