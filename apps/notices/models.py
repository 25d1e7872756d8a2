"""Personal notices: choices of each person, lines that wait, and the mails that carry them."""

import uuid

from django.core.validators import MaxValueValidator
from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from apps.quotas.models import EventKind, Tenant, User
from apps.quotas.models.row import Row, checks
from gpucloud import schedules


class NoticeKind(models.TextChoices):
    """Kind of a notice; the label says what it tells. Each is a column of `NoticeSettings`."""

    STARTED = "started", _("A claim is in force")
    PREEMPTED = "preempted", _("A claim will lose or has lost its GPUs")
    IDLE = "idle", _("A claim is idle")
    NODE_LOST = "node_lost", _("A node is lost")
    JOB_SUCCEEDED = "job_succeeded", _("A job or notebook has succeeded")
    JOB_FAILED = "job_failed", _("A job or notebook has failed")
    JOB_STOPPED = "job_stopped", _("A job or notebook was stopped")
    BUDGET = "budget", _("A budget is spent to a threshold")
    REQUEST = "request", _("A quota request was answered")


# Events of each kind. `node.lost` goes to operators; members learn of their claims.
EVENTS = {
    NoticeKind.STARTED: (EventKind.CLAIM_ACTIVE,),
    NoticeKind.PREEMPTED: (EventKind.CLAIM_PREEMPTION_NOTICE, EventKind.CLAIM_PREEMPTED),
    NoticeKind.IDLE: (EventKind.CLAIM_IDLE,),
    NoticeKind.NODE_LOST: (EventKind.CLAIM_UNREACHABLE, EventKind.NODE_LOST),
    NoticeKind.JOB_SUCCEEDED: (EventKind.JOB_SUCCEEDED,),
    NoticeKind.JOB_FAILED: (EventKind.JOB_FAILED,),
    NoticeKind.JOB_STOPPED: (EventKind.JOB_STOPPED,),
    NoticeKind.BUDGET: (EventKind.BUDGET_THRESHOLD,),
    NoticeKind.REQUEST: (EventKind.QUOTA_REQUEST_DECIDED,),
}
KIND_OF = {event: kind for kind, events in EVENTS.items() for event in events}
URGENT = frozenset({NoticeKind.PREEMPTED, NoticeKind.NODE_LOST})


class When(models.TextChoices):
    """When a kind's notices are mailed."""

    NOW = "now", _("At once")
    DIGEST = "digest", _("Once a day")
    OFF = "off", _("Never")


class BudgetPercent(models.IntegerChoices):
    """Least threshold of a budget of which a person is told."""

    EIGHTY = 80, _("80 %, 95 % and 100 %")
    NINETY_FIVE = 95, _("95 % and 100 %")
    HUNDRED = 100, _("100 % only")


def _when() -> "models.CharField[str, str]":
    return models.CharField(max_length=10, choices=When, default=When.OFF, db_default=When.OFF)


class NoticeSettings(Row):
    """A person's choices; nobody is told anything without a row."""

    user = models.OneToOneField(User, on_delete=models.CASCADE, related_name="notice_settings")
    started = _when()
    preempted = _when()
    idle = _when()
    node_lost = _when()
    job_succeeded = _when()
    job_failed = _when()
    job_stopped = _when()
    budget = _when()
    request = _when()
    budget_percent = models.PositiveSmallIntegerField(choices=BudgetPercent, default=80, db_default=80)
    # False: only claims that the person made, or their token.
    all_claims = models.BooleanField(default=False, db_default=False)
    # As of `gpucloud.schedules`; empty: none.
    quiet_hours = models.CharField(
        max_length=schedules.MOST_LETTERS, blank=True, default="", db_default="", validators=[schedules.validate]
    )
    urgent_passes = models.BooleanField(default=True, db_default=True)
    digest_hour = models.PositiveSmallIntegerField(default=8, db_default=8, validators=[MaxValueValidator(23)])
    # Written by the sender, without a new version.
    last_mail_at = models.DateTimeField(null=True)

    class Meta:
        constraints = checks(notice_hour_of_a_day=Q(digest_hour__lte=23))

    def __str__(self) -> str:
        return f"notices of {self.user}"

    @property
    def chosen(self) -> dict[str, str]:
        """When each kind is mailed, by kind; without those that are off."""
        return {kind: when for kind in NoticeKind.values if (when := getattr(self, kind)) != When.OFF}


class MailState(models.TextChoices):
    """State: pending → sent, failed after the last attempt, or dropped (nobody may read it any more)."""

    PENDING = "pending"
    SENT = "sent"
    FAILED = "failed"
    DROPPED = "dropped"


class Mail(Row):
    """One mail to one person; `uid` is its Message-ID at every attempt."""

    uid = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="notice_mails")
    is_test = models.BooleanField(default=False, db_default=False)
    state = models.CharField(max_length=10, choices=MailState, default=MailState.PENDING)
    attempts = models.PositiveSmallIntegerField(default=0)
    next_attempt_at = models.DateTimeField(null=True)
    error = models.CharField(max_length=300, null=True)
    sent_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ["pk"]
        constraints = checks(
            mail_state_known=Q(state__in=MailState.values),
            mail_pending_has_a_time=Q(state="pending", next_attempt_at__isnull=False) | ~Q(state="pending"),
        )
        indexes = [
            models.Index(fields=["next_attempt_at"], condition=Q(state="pending"), name="mail_due"),
            models.Index(fields=["created_at"], name="mail_old"),
        ]

    def __str__(self) -> str:
        return f"mail {self.uid}"


class Notice(models.Model):
    """One line for one person, written once for each event; `mail` is null until a mail carries it."""

    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="notices")
    # Null: of the platform, for operators.
    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, null=True, related_name="+")
    kind = models.CharField(max_length=20)
    title = models.CharField(max_length=400)
    detail = models.CharField(max_length=400)
    url = models.CharField(max_length=500, blank=True, default="")
    at = models.DateTimeField()
    due_at = models.DateTimeField()
    mail = models.ForeignKey(Mail, on_delete=models.CASCADE, null=True, related_name="notices")

    class Meta:
        ordering = ["pk"]
        indexes = [models.Index(fields=["user", "due_at"], condition=Q(mail=None), name="notice_waits")]

    def __str__(self) -> str:
        return self.title
