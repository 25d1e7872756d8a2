"""Webhooks: addresses with their subscribed events, and every message to them."""

import uuid

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from apps.quotas.models.row import Owned, Row, checks
from apps.quotas.models.tenant import Role, Tenant


class EventKind(models.TextChoices):
    """Kind of an event; the label describes it."""

    CLAIM_ACTIVE = "claim.active", _("A claim is in force on its GPUs.")
    CLAIM_FAILED = "claim.failed", _("An agent could not put a claim in force.")
    CLAIM_RELEASED = "claim.released", _("A claim is released.")
    CLAIM_SUSPENDED = "claim.suspended", _("A claim is suspended: its GPU memory is in its node's memory.")
    CLAIM_RESUMED = "claim.resumed", _("The programs of a suspended claim are on their GPUs again.")
    CLAIM_MOVED = "claim.moved", _("A claim's programs were moved to other GPUs of their node.")
    CLAIM_SUSPEND_FAILED = (
        "claim.suspend_failed",
        _("A claim could not be suspended or moved and runs on, or not be resumed and stays suspended; `why` tells."),
    )
    CLAIM_OVER_QUOTA = "claim.over_quota", _("A claim waits because its tenant's quota has no room for it.")
    CLAIM_PREEMPTION_NOTICE = "claim.preemption_notice", _("A claim will lose its GPUs at the time in the message.")
    CLAIM_PREEMPTION_SPARED = "claim.preemption_spared", _("A claim with a preemption notice may stay.")
    CLAIM_PREEMPTED = "claim.preempted", _("A claim is preempted and returns to the queue.")
    CLAIM_IDLE = (
        "claim.idle",
        _("A claim is idle for the time that its pool allows; `release_at`: time of its release."),
    )
    CLAIM_AWAKE = "claim.awake", _("A claim that was idle is idle no longer.")
    CLAIM_UNREACHABLE = "claim.unreachable", _("The node of a claim is lost: the state of the claim is unknown.")
    CLAIM_REACHABLE = "claim.reachable", _("The lost node of a claim is back.")
    CLAIM_BELOW_GUARANTEE = (
        "claim.below_guarantee",
        _("A claim gets less compute than its request although its programs want more."),
    )
    CLAIM_GUARANTEE_MET = "claim.guarantee_met", _("A claim gets its requested compute again, or wants less.")
    JOB_SUCCEEDED = "job.succeeded", _("A job or notebook has ended by itself, with exit code 0.")
    JOB_FAILED = "job.failed", _("A job or notebook has failed: its last try, its claim, or what it waited for.")
    JOB_STOPPED = "job.stopped", _("A job or notebook was stopped: by a person, by its idle rule, or with its claim.")
    QUOTA_EXCEEDED = "quota.exceeded", _("A quota was lowered below its use.")
    QUOTA_REQUEST_DECIDED = "quota_request.decided", _("A request for more was answered, or what it granted has ended.")
    BUDGET_THRESHOLD = "budget.threshold", _("80, 95 or 100 percent of a budget are spent.")
    RESERVATION_BEGAN = "reservation.began", _("A reservation has begun.")
    RESERVATION_ENDED = "reservation.ended", _("A reservation has ended, or was released.")
    NODE_LOST = "node.lost", _("A node's agent is silent; to tenants whose claims it carries.")
    NODE_RETURNED = "node.returned", _("A lost node's agent is back; to tenants whose claims it carries.")


# Sent by `test/`; no webhook subscribes to it.
TEST = "webhook.test"


class WebhookFormat(models.TextChoices):
    """Format of a webhook's messages; the label says who takes it."""

    GPUCLOUD = "gpucloud", _("Signed JSON of Standard Webhooks, for your own server")
    SLACK = "slack", _("Slack: an incoming webhook (also Mattermost)")
    TEAMS = "teams", _("Microsoft Teams: a workflow’s webhook")
    ALERTMANAGER = "alertmanager", _("Prometheus Alertmanager: its API for alerts")


# Format of the one row that records events for personal notices (apps/notices); `Webhook.objects` never shows it.
PEOPLE = "people"


class WebhookQuerySet(Owned["Webhook"]):
    """Webhooks, filtered by principal."""

    least_role = Role.ADMIN


class WebhookManager(models.Manager.from_queryset(WebhookQuerySet)):  # type: ignore[misc]
    """Webhooks that somebody made."""

    def get_queryset(self) -> WebhookQuerySet:
        """Return all rows but that of the notices."""
        rows: WebhookQuerySet = super().get_queryset()
        return rows.exclude(format=PEOPLE)


class Webhook(Row):
    """One address and its subscribed events: in one tenant, or (tenant null) on the whole platform.

    The secret is not stored: it is derived from the uid, `secret_number` and SECRET_KEY.
    """

    audited = ("webhook", "uid")
    uid = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="webhooks", null=True)
    url = models.CharField(max_length=2000)
    format = models.CharField(
        max_length=20, choices=WebhookFormat, default=WebhookFormat.GPUCLOUD, db_default=WebhookFormat.GPUCLOUD
    )
    description = models.CharField(max_length=200, blank=True, default="")
    # Values of `EventKind`.
    events = ArrayField(models.CharField(max_length=40))
    enabled = models.BooleanField(default=True)
    # Reason why it was disabled automatically.
    disabled_reason = models.CharField(max_length=300, null=True)
    secret_number = models.PositiveIntegerField(default=1)
    rotated_at = models.DateTimeField(null=True)
    created_by = models.CharField(max_length=200)
    # Written by deliveries, without a new version.
    failures = models.PositiveIntegerField(default=0)
    failing_since = models.DateTimeField(null=True)
    not_before = models.DateTimeField(null=True)

    objects = WebhookManager()
    # With the row of the notices: the outbox writes to it as to any other.
    every = WebhookQuerySet.as_manager()

    class Meta:
        ordering = ["pk"]
        constraints = [
            *checks(webhook_format_known=Q(format__in=[*WebhookFormat.values, PEOPLE])),
            models.UniqueConstraint(fields=["format"], condition=Q(format=PEOPLE), name="webhook_people_once"),
        ]

    def __str__(self) -> str:
        # Without the URL: of some formats it is a secret, and a text like this ends in logs.
        return f"{self.tenant or 'platform'}: {self.uid}"

    @classmethod
    def record_for_people(cls, events: list[str]) -> None:
        """Have the outbox record these events for personal notices, and no others."""
        values = {"tenant": None, "url": "", "events": events, "enabled": bool(events), "created_by": "system"}
        cls.every.update_or_create(format=PEOPLE, defaults=values)

    @property
    def signed(self) -> bool:
        """True if its messages are signed; others are authenticated by their URL or their network."""
        return self.format == WebhookFormat.GPUCLOUD

    @property
    def standing(self) -> str:
        """State: `on`, `failing`, `off` (disabled by a user) or `stopped` (automatically, see `disabled_reason`)."""
        if not self.enabled:
            return "stopped" if self.disabled_reason else "off"
        return "failing" if self.failures else "on"


class DeliveryState(models.TextChoices):
    """State: pending → delivered, or failed after the last attempt; a redelivery makes it pending again."""

    PENDING = "pending"
    DELIVERED = "delivered"
    FAILED = "failed"


class WebhookDelivery(Row):
    """One message to one webhook, written in the transaction of its event; with the result of its delivery."""

    uid = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    # No constraint: removing a webhook meanwhile must not roll back the event.
    webhook = models.ForeignKey(Webhook, on_delete=models.CASCADE, db_constraint=False, related_name="deliveries")
    kind = models.CharField(max_length=40)
    body = models.TextField(help_text="The event as JSON; signed formats send it to the byte.")
    state = models.CharField(max_length=10, choices=DeliveryState, default=DeliveryState.PENDING)
    attempts = models.PositiveSmallIntegerField(default=0)
    next_attempt_at = models.DateTimeField(null=True)
    status_code = models.PositiveSmallIntegerField(null=True)
    error = models.CharField(max_length=300, null=True)
    delivered_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ["pk"]
        constraints = checks(
            delivery_state_known=Q(state__in=DeliveryState.values),
            delivery_pending_has_a_time=(
                Q(state="pending", next_attempt_at__isnull=False) | (~Q(state="pending") & Q(next_attempt_at=None))
            ),
        )
        indexes = [
            models.Index(fields=["webhook", "next_attempt_at"], condition=Q(state="pending"), name="delivery_due"),
            models.Index(fields=["created_at"], name="delivery_old"),
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.uid}"
