"""The owner or rule by whose order a claim is put aside."""

from django.db import models
from django.utils.translation import gettext_lazy as _


class SuspendedBy(models.TextChoices):
    """The owner or the rule of the platform by whose order a claim is put aside."""

    OWNER = "owner", _("its owner")
    IDLE = "idle", _("the rule for idle claims")
    DRAIN = "drain", _("the drain of its node")
    RECLAIM = "reclaim", _("a preemption")
    ROTATION = "rotation", _("the rotation of its GPUs")
    SCHEDULE = "schedule", _("its schedule")
