"""What a pod said of its shares after it was placed, and what it was told of that."""

from django.db import models
from django.db.models import Q

from apps.clusters.models.pod import PodClaim
from apps.quotas.models.row import Row


class TellState(models.TextChoices):
    """What stands in the pod's status annotation."""

    NOTHING = ""
    PENDING = "pending"
    IN_FORCE = "in-force"
    REFUSED = "refused"


class PodResize(Row):
    """Of one container. Annotations act when they change: whoever spoke last, there or by the API, is followed."""

    container = models.OneToOneField(PodClaim, on_delete=models.CASCADE, related_name="resize")
    # The annotations as they were last acted on, by their keys.
    words = models.JSONField(default=dict)
    # Why that was not done; empty: it was.
    refusal = models.CharField(max_length=2000, blank=True, default="")
    told = models.CharField(max_length=10, choices=TellState, default=TellState.NOTHING, blank=True)
    told_generation = models.PositiveIntegerField(default=1)

    class Meta:
        constraints = [models.CheckConstraint(condition=Q(told__in=TellState.values), name="resize_told_known")]

    def __str__(self) -> str:
        return f"{self.container}: {self.told or 'nothing told'}"
