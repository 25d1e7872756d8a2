"""Elastic groups: claims that start together, join a running group, and leave it (`apps.groups`)."""

from django.db import models

from apps.scheduling.models.claim import Claim


class ElasticGroup(models.Model):
    """The members of an elastic group as its programs were last told; its name and most are its first claim's."""

    first = models.OneToOneField(Claim, on_delete=models.CASCADE, primary_key=True, related_name="elastic_group")
    # The least number of members with which it runs.
    least = models.PositiveSmallIntegerField()
    # Raised by every change of the members.
    generation = models.PositiveIntegerField(default=0, db_default=0)
    # In the order of their ranks: {"claim", "node", "host", "gpu_count", "joined_at", "leaves_at"} each.
    members = models.JSONField(default=list, db_default=[])
    updated_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["-pk"]

    def __str__(self) -> str:
        return f"{self.first.tenant}/{self.first.group}"
