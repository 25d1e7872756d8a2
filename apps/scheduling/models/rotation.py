"""Rotation: claims that share GPUs by time (`apps.suspension.rotation`)."""

from django.db import models
from django.db.models import Q

from apps.scheduling.models.claim import Claim


class RotationMember(models.Model):
    """A claim's part in the rotation of its GPUs; a claim without a row takes no part in one.

    `served_ms`: GPU time in milliseconds, up to `counted_to`: its share of a GPU on each of its GPUs, while its
    programs could run; null: it only waits so far.
    """

    claim = models.OneToOneField(Claim, on_delete=models.CASCADE, primary_key=True, related_name="rotation")
    served_ms = models.BigIntegerField(null=True)
    counted_to = models.DateTimeField()
    # Since when its `nominated_gpus` are those that the rotation frees for it; null: it does not.
    nominated_at = models.DateTimeField(null=True)
    # It could not come in although there was room; it is not tried before this.
    paused_until = models.DateTimeField(null=True)
    # 0: it is in; 1: it is the next to come in on its GPUs; null: not known.
    place = models.PositiveSmallIntegerField(null=True)
    # When it goes out or comes in, as far as is known now.
    changes_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ["pk"]
        indexes = [
            models.Index(fields=["nominated_at"], name="rotation_nominated", condition=Q(nominated_at__isnull=False))
        ]

    def __str__(self) -> str:
        return f"{self.claim} in rotation"

    @property
    def served_gpu_seconds(self) -> int | None:
        """The GPU time that the claim was served up to its last move."""
        return None if self.served_ms is None else self.served_ms // 1000
