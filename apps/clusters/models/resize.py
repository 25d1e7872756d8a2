"""Resizes that pods request by annotations, and their reported status."""

from django.db import models
from django.db.models import Q

from apps.clusters.models.pod import PodClaim
from apps.quotas.models.row import Row, checks


class TellState(models.TextChoices):
    """Status in the pod's annotation."""

    NOTHING = ""
    PENDING = "pending"
    IN_FORCE = "in-force"
    REFUSED = "refused"


class PodResize(Row):
    """Resize of one container. Annotations act when they change: the last change wins, there or by the API."""

    container = models.OneToOneField(PodClaim, on_delete=models.CASCADE, related_name="resize")
    # The annotations that were last applied, by key.
    words = models.JSONField(default=dict)
    # Reason of a refusal; empty if it was applied.
    refusal = models.CharField(max_length=2000, blank=True, default="")
    told = models.CharField(max_length=10, choices=TellState, default=TellState.NOTHING, blank=True)
    told_generation = models.PositiveIntegerField(default=1)

    class Meta:
        constraints = checks(resize_told_known=Q(told__in=TellState.values))

    def __str__(self) -> str:
        return f"{self.container}: {self.told or 'nothing told'}"
