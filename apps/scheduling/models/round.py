"""Rounds: records of what the scheduler saw and decided, to explain and replay decisions.

A round holds its questions and answers, and the changes since the round before it. The state at the beginning is a
snapshot that many rounds share: five thousand nodes are not stored each time.
"""

from typing import Any

from django.db import models

from apps.quotas.models import Pool


class FleetSnapshot(models.Model):
    """A pool's GPUs, nodes and typical requests at one moment (`services.cycles.records`)."""

    pool = models.ForeignKey(Pool, on_delete=models.PROTECT, related_name="+")
    at = models.DateTimeField(auto_now_add=True)
    policy = models.CharField(max_length=20)
    state = models.BinaryField(help_text="JSON, compressed by zlib.")

    class Meta:
        ordering = ["-pk"]
        indexes = [models.Index(fields=["at"], name="snapshot_by_time")]

    def __str__(self) -> str:
        return f"snapshot {self.pk} of {self.pool}"


class Round(models.Model):
    """One pass over a pool's queue. `steps` follow those of the rounds before it that have the same base."""

    pool = models.ForeignKey(Pool, on_delete=models.PROTECT, related_name="rounds")
    base = models.ForeignKey(FleetSnapshot, on_delete=models.CASCADE, related_name="rounds")
    at = models.DateTimeField(auto_now_add=True)
    duration_us = models.PositiveIntegerField()
    considered = models.PositiveIntegerField()
    placed = models.PositiveIntegerField()
    steps = models.JSONField()

    class Meta:
        ordering = ["-pk"]

    def __str__(self) -> str:
        return f"round {self.pk} of {self.pool}"

    @property
    def queue(self) -> list[dict[str, Any]]:
        """The claims that were asked about, in order."""
        return [{"claim": step["claim"], **step["request"]} for step in self._decided_steps]

    @property
    def decisions(self) -> list[dict[str, Any]]:
        """The outcome for each: its GPUs, or why it has none."""
        return [
            {"claim": step["claim"], "reasons": step.get("instead", step.get("reasons"))}
            if "instead" in step or "reasons" in step
            else {"claim": step["claim"], "gpus": step["gpus"]}
            for step in self._decided_steps
        ]

    @property
    def _decided_steps(self) -> list[dict[str, Any]]:
        return [step for step in self.steps if "claim" in step]
