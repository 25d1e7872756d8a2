"""Quota requests: a tenant's request, an operator's answer, and its result."""

import uuid

from django.core.validators import RegexValidator
from django.db import models
from django.db.models import Q

from apps.quotas.models.budget import Period
from apps.quotas.models.pool import Pool
from apps.quotas.models.resource import MIG_RESOURCE, Resource, profile_of
from apps.quotas.models.row import Owned, Row, checks
from apps.quotas.models.tenant import Tenant


class RequestState(models.TextChoices):
    """State: requested (by a member) → open; open → approved, denied or countered; countered → approved; and ends.

    The ends are denied and withdrawn, of each of these, and lapsed, of what was approved.
    """

    REQUESTED = "requested"
    OPEN = "open"
    COUNTERED = "countered"
    APPROVED = "approved"
    DENIED = "denied"
    WITHDRAWN = "withdrawn"
    LAPSED = "lapsed"


# States in which an operator may answer.
UNDECIDED = (RequestState.OPEN, RequestState.COUNTERED)
# States in which a tenant may withdraw: besides those, a member's request that no admin has passed on.
UNANSWERED = (RequestState.REQUESTED, *UNDECIDED)
GRANTED = (RequestState.APPROVED, RequestState.LAPSED)


# A request for a budget asks for these hours; `period` says which budget.
GPU_HOURS = "gpu_hours"
REQUESTED = f"^({'|'.join([*Resource.values, MIG_RESOURCE, GPU_HOURS])})$"
PERIODS = [(one.value, one.label) for one in (Period.MONTH, Period.WEEK)]


class QuotaRequestQuerySet(Owned["QuotaRequest"]):
    """Requests, filtered by principal."""


class QuotaRequest(Row):
    """A request for more of one resource, or of a budget, with reason and end. `granted_*` is the actual increase."""

    audited = ("quota-request", "uid")
    uid = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="quota_requests")
    pool = models.ForeignKey(Pool, on_delete=models.PROTECT, related_name="+", null=True)
    # One of `Resource`, a MIG profile's, or GPU_HOURS.
    resource = models.CharField(max_length=20, validators=[RegexValidator(REQUESTED)])
    period = models.CharField(max_length=10, choices=PERIODS, null=True, help_text="Of a budget's GPU-hours only.")
    amount = models.BigIntegerField(help_text="How much more than the quota has.")
    until = models.DateTimeField(null=True, help_text="Null: for good.")
    reason = models.CharField(max_length=2000)
    state = models.CharField(max_length=10, choices=RequestState, default=RequestState.OPEN)
    offered_amount = models.BigIntegerField(null=True)
    offered_until = models.DateTimeField(null=True)
    words = models.CharField(max_length=2000, blank=True, default="", help_text="The operator's answer.")
    granted_amount = models.BigIntegerField(null=True)
    granted_until = models.DateTimeField(null=True)
    created_by = models.CharField(max_length=200)
    answered_by = models.CharField(max_length=200, null=True)
    decided_at = models.DateTimeField(null=True)

    objects = QuotaRequestQuerySet.as_manager()

    class Meta:
        ordering = ["pk"]
        constraints = checks(
            request_state_known=Q(state__in=RequestState.values),
            request_amount_positive=Q(amount__gte=1),
            request_period_is_a_budgets=(
                Q(resource=GPU_HOURS, period__in=[Period.MONTH, Period.WEEK], pool=None)
                | (~Q(resource=GPU_HOURS) & Q(period=None))
            ),
            request_granted_where_approved=(
                Q(state__in=GRANTED, granted_amount__gte=1)
                | (~Q(state__in=GRANTED) & Q(granted_amount=None, granted_until=None))
            ),
        )
        indexes = [
            models.Index(fields=["granted_until"], condition=Q(state="approved"), name="request_lapses"),
        ]

    def __str__(self) -> str:
        return f"{self.amount} more {self.resource} for {self.tenant}"

    @property
    def profile(self) -> str | None:
        """The MIG profile whose instances it asks for; None: another resource."""
        return profile_of(self.resource)

    @property
    def of_budget(self) -> bool:
        """True if it asks for GPU-hours of a budget, not for a quota."""
        return self.resource == GPU_HOURS
