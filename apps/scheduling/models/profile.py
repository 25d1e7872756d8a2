"""Profiles: the rates that claims had alone on their GPUs (`apps.packing`)."""

from django.db import models

from apps.scheduling.models.claim import Claim


class PackProfile(models.Model):
    """A claim's rate alone on its GPU, and what it keeps of it beside another claim; means of a window."""

    claim = models.OneToOneField(Claim, on_delete=models.CASCADE, primary_key=True, related_name="pack_profile")
    # Launches a second, and GPU time in percent, alone.
    launches = models.FloatField()
    core = models.FloatField()
    measured_at = models.DateTimeField()
    # Percentage of its rate alone at the last look; null: it is alone, or does not want the GPU.
    kept = models.FloatField(null=True)
    # Claims beside which it or they lost too much, by uid: when that was found (ISO 8601).
    apart = models.JSONField(default=dict)

    class Meta:
        ordering = ["pk"]

    def __str__(self) -> str:
        return f"profile of {self.claim}"
