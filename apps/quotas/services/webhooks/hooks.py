"""Management of webhooks. The audit log omits their URLs: a path may be a secret."""

from collections.abc import Iterable
from typing import Any

from django.db import transaction
from django.utils import timezone

from apps.quotas.models import Role, Tenant, Webhook, WebhookDelivery
from apps.quotas.models.webhook import TEST, DeliveryState, WebhookFormat
from apps.quotas.principals import Principal
from apps.quotas.services import audit
from apps.quotas.services.webhooks import addresses, outbox, signing
from apps.quotas.services.webhooks.formats import rendering
from gpucloud import locks
from gpucloud.api import etags
from gpucloud.errors import Conflict

# Most webhooks of a tenant: each may hang until its timeout, for every event.
MOST = 20


class TooManyWebhooks(Conflict, code="too-many-webhooks", title="Too many webhooks"):
    """The tenant, or the platform, has the most webhooks allowed."""


class StillPending(Conflict, code="delivery-pending", title="The delivery is pending"):
    """The delivery is still pending: it is retried automatically."""


@transaction.atomic
def create(
    *,
    principal: Principal,
    tenant: Tenant | None,
    url: str,
    events: Iterable[str],
    format: str = WebhookFormat.GPUCLOUD,  # noqa: A002 - the field's name
    description: str = "",
    enabled: bool = True,
) -> tuple[Webhook, str | None]:
    """Create a webhook and its secret, which is shown once (None: the format is not signed).

    Raises UrlRefused, EventsRefused, TooManyWebhooks, Denied.
    """
    _require(principal, tenant)
    addresses.parse(url)
    events = sorted(set(events))
    rendering.check(format, url=url, events=events)
    locks.serialize_transaction(f"webhooks of tenant {tenant.pk}" if tenant else "webhooks of the platform")
    _refuse_many(tenant)
    hook = Webhook.objects.create(
        tenant=tenant,
        url=url,
        format=format,
        events=events,
        description=description,
        enabled=enabled,
        created_by=principal.name,
    )
    told = {"to": addresses.origin(url), "format": format, "events": events, "enabled": enabled}
    _note(hook, principal=principal, action="create", **told)
    return hook, signing.secret(hook) if hook.signed else None


@transaction.atomic
def change(*, principal: Principal, hook: Webhook, versions: etags.Versions = None, **values: Any) -> Webhook:
    """Set the given values; enabling resets the failures.

    Raises UrlRefused, EventsRefused, Denied, PreconditionFailed.
    """
    hook = _lock_row(principal, hook, versions)
    told = {name: value for name, value in values.items() if name != "url"}
    if "url" in values:
        addresses.parse(values["url"])
        told["to"] = addresses.origin(values["url"])
    if "events" in values:
        values["events"] = told["events"] = sorted(set(values["events"]))
    if values.keys() & {"url", "events"}:
        rendering.check(hook.format, **{"url": hook.url, "events": hook.events, **_of(values, "url", "events")})
    if "enabled" in values or "url" in values:
        values |= {"failures": 0, "failing_since": None, "not_before": None}
    if "enabled" in values:
        values["disabled_reason"] = None
    hook.change(**values)
    _note(hook, principal=principal, action="change", **told)
    transaction.on_commit(outbox.hint)
    return hook


@transaction.atomic
def delete(*, principal: Principal, hook: Webhook, versions: etags.Versions = None) -> None:
    """Remove the webhook and its pending messages. Raises Denied, PreconditionFailed."""
    hook = _lock_row(principal, hook, versions)
    _note(hook, principal=principal, action="delete", to=addresses.origin(hook.url))
    hook.delete()


@transaction.atomic
def rotate(*, principal: Principal, hook: Webhook, versions: etags.Versions = None) -> tuple[Webhook, str]:
    """Create a new secret; the previous one signs too for a day. Raises UnsignedFormat, Denied, PreconditionFailed."""
    hook = _lock_row(principal, hook, versions)
    if not hook.signed:
        raise rendering.UnsignedFormat("Its messages have no secret: only those of format gpucloud are signed.")
    hook.change(secret_number=hook.secret_number + 1, rotated_at=timezone.now())
    _note(hook, principal=principal, action="rotate")
    return hook, signing.secret(hook)


@transaction.atomic
def send_test(*, principal: Principal, hook: Webhook, versions: etags.Versions = None) -> WebhookDelivery:
    """Queue a test message, even if the webhook is disabled. Raises Denied, PreconditionFailed."""
    hook = _lock_row(principal, hook, versions)
    _note(hook, principal=principal, action="test")
    Webhook.objects.filter(pk=hook.pk).update(not_before=None)
    return outbox.write([hook.pk], TEST, {"tenant": hook.tenant and hook.tenant.slug, "webhook": hook.uid})[0]


@transaction.atomic
def redeliver(
    *, principal: Principal, hook: Webhook, delivery: WebhookDelivery, versions: etags.Versions = None
) -> WebhookDelivery:
    """Queue a message again, with the same id. Raises StillPending, Denied, PreconditionFailed."""
    hook = _lock_row(principal, hook, None)
    delivery = etags.lock(delivery, versions)
    if delivery.state == DeliveryState.PENDING:
        raise StillPending(
            f"It is tried next at {delivery.next_attempt_at:%Y-%m-%d %H:%M:%S} UTC: wait for that.",
            next_attempt_at=delivery.next_attempt_at,
        )
    delivery.change(state=DeliveryState.PENDING, attempts=0, next_attempt_at=timezone.now(), delivered_at=None)
    _note(hook, principal=principal, action="redeliver", delivery=str(delivery.uid), kind=delivery.kind)
    transaction.on_commit(outbox.hint)
    return delivery


def _of(values: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: values[name] for name in names if name in values}


def _refuse_many(tenant: Tenant | None) -> None:
    there = Webhook.objects.filter(tenant=tenant).count()
    if there >= MOST:
        raise TooManyWebhooks(f"There are {there} already: remove one.", webhooks=there, most=MOST)


def _require(principal: Principal, tenant: Tenant | None) -> None:
    if tenant is None:
        principal.require_operator()
    else:
        principal.require_role(tenant, Role.ADMIN)


def _lock_row(principal: Principal, hook: Webhook, versions: etags.Versions) -> Webhook:
    _require(principal, hook.tenant)
    return etags.lock(hook, versions, "tenant")


def _note(hook: Webhook, *, principal: Principal, action: str, **after: Any) -> None:
    audit.record(principal, f"webhook.{action}", hook, after=after or None)
