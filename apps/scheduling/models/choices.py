"""Choices of claims' fields."""

from django.db import models
from django.utils.translation import gettext_lazy as _


class OverQuota(models.TextChoices):
    """The treatment of a claim for which the tenant's quota has no room."""

    REFUSE = "refuse"
    WAIT = "wait"


class Isolation(models.TextChoices):
    """The boundary between a claim and the others on its GPU."""

    SHARED = "shared", _("a share of a GPU")
    HARD = "hard", _("a MIG instance of its own")


class Remote(models.TextChoices):
    """The use of a claim from other machines than its node (docs/remote.md)."""

    ALLOW = "allow", _("allowed, where its pool and tenant allow it")
    REQUIRE = "require", _("needed: only nodes that clients can reach")
    NEVER = "never", _("refused")


class Idle(models.TextChoices):
    """Reasons for which a claim counts as idle."""

    IDLE = "idle", "Its programs compute nothing"
    UNUSED = "unused", "No program has used it"
