"""The last what-if of each pool."""

import uuid

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import Q

from apps.quotas.models import Pool
from apps.quotas.models.row import Row, checks


class WhatIfState(models.TextChoices):
    """States: pending → running → done or failed."""

    PENDING = "pending"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"


UNFINISHED = (WhatIfState.PENDING, WhatIfState.RUNNING)


class WhatIf(Row):
    """A replay of a pool's last days: what was asked, how far it is, and its figures. The next one replaces it."""

    audited = ("what-if", "pool")
    pool = models.OneToOneField(Pool, on_delete=models.CASCADE, related_name="what_if")
    # Changes with every order, so that a task of an earlier one writes nothing.
    run = models.UUIDField(default=uuid.uuid4)
    days = models.PositiveSmallIntegerField()
    kinds = ArrayField(models.CharField(max_length=20))
    state = models.CharField(max_length=10, choices=WhatIfState, default=WhatIfState.PENDING)
    progress_percent = models.PositiveSmallIntegerField(default=0)
    # Claims of the period, and how many of them, the oldest, are not replayed.
    claims = models.PositiveIntegerField(default=0)
    left_out = models.PositiveIntegerField(default=0)
    begin = models.DateTimeField(null=True)
    end = models.DateTimeField(null=True)
    # `Figures` of each kind, in the order of `kinds`.
    results = models.JSONField(default=list)
    words = models.CharField(max_length=500, blank=True, default="")
    created_by = models.CharField(max_length=200)
    ordered_at = models.DateTimeField()
    finished_at = models.DateTimeField(null=True)

    class Meta:
        constraints = checks(whatif_state_known=Q(state__in=WhatIfState.values))

    def __str__(self) -> str:
        return f"what-if of {self.pool}"
