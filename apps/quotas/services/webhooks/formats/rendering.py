"""Body and checks of each format."""

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final, assert_never
from urllib.parse import urlsplit

from apps.quotas.models import Webhook, WebhookDelivery
from apps.quotas.models.webhook import WebhookFormat
from apps.quotas.services.webhooks.addresses import UrlRefused, origin
from apps.quotas.services.webhooks.formats import alertmanager, slack, teams
from apps.quotas.services.webhooks.formats.words import Event, words_of
from gpucloud.errors import Invalid

# Their URLs hold the key with which anybody may post: they are never shown again.
SECRET_URLS: Final = frozenset({WebhookFormat.SLACK, WebhookFormat.TEAMS})
# What to do, by format and status of the answer; from the guides of Slack and Microsoft.
ADVICE: Final = {
    (WebhookFormat.SLACK, 403): "A rule of the workspace forbids it: ask an admin of Slack.",
    (WebhookFormat.SLACK, 404): "The webhook or its channel was removed in Slack: create another one there.",
    (WebhookFormat.SLACK, 410): "Its channel is archived in Slack: create a webhook for another one.",
    (WebhookFormat.TEAMS, 401): "The URL lacks its signature: copy the whole URL from the workflow.",
    (WebhookFormat.TEAMS, 403): "The URL's signature is wrong: copy the whole URL from the workflow.",
    (WebhookFormat.TEAMS, 404): "The workflow was removed or switched off in Teams: create another one there.",
    (
        WebhookFormat.ALERTMANAGER,
        404,
    ): f"The URL must end with {alertmanager.PATH}, after the server's --web.route-prefix.",
    (WebhookFormat.ALERTMANAGER, 410): "Its version 1 API is gone: the URL must be that of version 2.",
}


class EventsRefused(Invalid, code="webhook-events", title="The format has no message for these events"):
    """The webhook's format cannot express the chosen events."""


class UnsignedFormat(Invalid, code="webhook-unsigned", title="This format is not signed"):
    """The webhook's format has no secret."""


def check(form: str, *, url: str, events: Sequence[str]) -> None:
    """Refuse a URL or events that do not fit the format. Raises UrlRefused, EventsRefused."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    if form == WebhookFormat.TEAMS and (host.endswith(".webhook.office.com") or host == "outlook.office.com"):
        raise UrlRefused(
            "Microsoft has retired the connectors of this address: in Teams, add the workflow «Post to a channel when a"
            " webhook request is received» and give its URL."
        )
    if form == WebhookFormat.ALERTMANAGER:
        if not parts.path.endswith(alertmanager.PATH) or parts.query:
            raise UrlRefused(f"Give the address of Alertmanager's alerts: https://HOST{alertmanager.PATH}.")
        if unknown := [kind for kind in events if kind not in alertmanager.ENDS]:
            raise EventsRefused(
                f"{', '.join(unknown)}: no alert begins with it. Choose events that begin an alert; those that end it"
                " are sent by themselves.",
                events=unknown,
                allowed=[kind for kind in alertmanager.ENDS if kind != "webhook.test"],
            )


def wants(form: str, chosen: Sequence[str], kind: str) -> bool:
    """Return True if a webhook of this format with these events gets an event of this kind."""
    return alertmanager.wants(chosen, kind) if form == WebhookFormat.ALERTMANAGER else kind in chosen


def shown_url(hook: Webhook) -> str:
    """Return the URL as it may be read: of chats, only the server and the last four characters."""
    if hook.format not in SECRET_URLS:
        return hook.url
    tail = hook.url[-4:] if len(hook.url) - len(origin(hook.url)) > 20 else ""
    return f"{origin(hook.url)}/…{tail}"


def message(delivery: WebhookDelivery, now: datetime) -> Any:
    """Return the message in its webhook's format, as JSON. One query for an alert, none for other formats."""
    hook, event = delivery.webhook, json.loads(delivery.body)
    form = WebhookFormat(hook.format)
    match form:
        case WebhookFormat.GPUCLOUD:
            return event
        case WebhookFormat.SLACK:
            return slack.message(words_of(Event.parse(event)))
        case WebhookFormat.TEAMS:
            return teams.message(words_of(Event.parse(event)))
        case WebhookFormat.ALERTMANAGER:
            return alertmanager.message([Event.parse(event), *_later(delivery, event)], hook.events, now)
        case _:
            assert_never(form)


def body(delivery: WebhookDelivery, now: datetime) -> bytes:
    """Return the bytes to send: those that were stored, or those of the format."""
    if delivery.webhook.format == WebhookFormat.GPUCLOUD:
        return delivery.body.encode()
    return json.dumps(message(delivery, now), ensure_ascii=False, separators=(",", ":")).encode()


def _later(delivery: WebhookDelivery, event: dict[str, Any]) -> list[Event]:
    """Return the later events of the same subject that this webhook has had or will have."""
    about = alertmanager.subject_of(event["data"])
    if about is None:
        return []
    rows = WebhookDelivery.objects.filter(webhook=delivery.webhook_id, pk__gt=delivery.pk or 0)
    # The text narrows the rows; the comparison decides.
    rows = rows.filter(kind__in=alertmanager.related(event["type"]), body__contains=json.dumps(about[1]))
    later = (json.loads(text) for text in rows.order_by("pk").values_list("body", flat=True))
    return [Event.parse(one) for one in later if alertmanager.subject_of(one["data"]) == about]
