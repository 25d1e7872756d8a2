"""Rounds: what the scheduler saw and decided, so that a decision can be explained and replayed."""

from django.db import models

from apps.quotas.models import Pool


class Round(models.Model):
    """One pass over a pool's queue. `fleet` and `queue` are the core's inputs, `decisions` its answers."""

    pool = models.ForeignKey(Pool, on_delete=models.PROTECT, related_name="rounds")
    at = models.DateTimeField(auto_now_add=True)
    duration_us = models.PositiveIntegerField()
    considered = models.PositiveIntegerField()
    placed = models.PositiveIntegerField()
    fleet = models.JSONField()
    queue = models.JSONField()
    decisions = models.JSONField()

    class Meta:
        ordering = ["-pk"]

    def __str__(self) -> str:
        return f"round {self.pk} of {self.pool}"
