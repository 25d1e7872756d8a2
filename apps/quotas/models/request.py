"""Requests for more: what a tenant's admin asks for, what an operator says, and what became of it."""

import uuid
from typing import TYPE_CHECKING

from django.db import models
from django.db.models import Q

from apps.quotas.models.pool import Pool
from apps.quotas.models.resource import Resource
from apps.quotas.models.row import Row
from apps.quotas.models.tenant import Tenant

if TYPE_CHECKING:
    from apps.quotas.principals import Principal


class RequestState(models.TextChoices):
    """open → approved, denied or countered; countered → approved (accepted); either → withdrawn; approved → lapsed."""

    OPEN = "open"
    COUNTERED = "countered"
    APPROVED = "approved"
    DENIED = "denied"
    WITHDRAWN = "withdrawn"
    LAPSED = "lapsed"


# What an operator may still answer, and a tenant withdraw.
UNDECIDED = (RequestState.OPEN, RequestState.COUNTERED)
GRANTED = (RequestState.APPROVED, RequestState.LAPSED)


class QuotaRequestQuerySet(models.QuerySet["QuotaRequest"]):
    """Requests, asked with who is asking."""

    def visible_to(self, principal: "Principal") -> "QuotaRequestQuerySet":
        """Every request to an operator; to others their tenants'."""
        return self if principal.is_operator else self.filter(tenant__in=principal.roles)


class QuotaRequest(Row):
    """So much more of one resource, why, and until when. `granted_*` is what the quota was in fact raised by."""

    uid = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="quota_requests")
    pool = models.ForeignKey(Pool, on_delete=models.PROTECT, related_name="+", null=True)
    resource = models.CharField(max_length=20, choices=Resource)
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
        constraints = [
            models.CheckConstraint(condition=Q(state__in=RequestState.values), name="request_state_known"),
            models.CheckConstraint(condition=Q(amount__gte=1), name="request_amount_positive"),
            models.CheckConstraint(
                condition=Q(state__in=GRANTED, granted_amount__gte=1)
                | (~Q(state__in=GRANTED) & Q(granted_amount=None, granted_until=None)),
                name="request_granted_where_approved",
            ),
        ]
        indexes = [
            models.Index(fields=["granted_until"], condition=Q(state="approved"), name="request_lapses"),
        ]

    def __str__(self) -> str:
        return f"{self.amount} more {self.resource} for {self.tenant}"
