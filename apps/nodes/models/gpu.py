"""GPUs and their allocated capacity.

`core_used` and `memory_used_mib` are the assignments' allocations. Only conditional UPDATEs write them
(`apps.nodes.services.capacity`), backed by CHECK constraints: no capacity is ever allocated twice.

`core_outside` and `memory_outside_mib` are in use without a claim. Such use is not checked beforehand, so it may exceed
the capacity; it is not free.
"""

from typing import Any

from django.db import models
from django.db.models import F, Q

from apps.nodes.models.node import Node
from apps.quotas.models.pool import BackEnd, MpsGroup
from apps.quotas.models.row import Row, checks

WHOLE = 100
# GPUs with a problem: few.
ILL = ~Q(unhealthy="") | Q(present=False)


class FreeCapacity:
    """The state of a GPU and what is free of it, for its model and for its rows (`apps.nodes.services.gpu_rows`)."""

    # Without slots of its own a named tuple that inherits it would get a dictionary for each row.
    __slots__ = ()

    present: Any
    cordoned: Any
    unhealthy: Any
    memory_mib: Any
    core_used: Any
    memory_used_mib: Any
    core_outside: Any
    memory_outside_mib: Any

    @property
    def state(self) -> str:
        """Return `missing`, `cordoned`, `unhealthy` or `ready`; only a ready GPU of a ready node takes new claims."""
        if not self.present:
            return "missing"
        if self.cordoned:
            return "cordoned"
        return "unhealthy" if self.unhealthy else "ready"

    @property
    def core_free(self) -> int:
        """Return the percent that is neither promised nor used without a claim."""
        return max(0, self.core_left)

    @property
    def memory_free_mib(self) -> int:
        """Return the MiB that are neither promised nor used without a claim."""
        return max(0, self.memory_left_mib)

    @property
    def core_left(self) -> int:
        """Return the same, below zero by what is used twice: that much must go before any is free."""
        left: int = WHOLE - self.core_used - self.core_outside
        return left

    @property
    def memory_left_mib(self) -> int:
        """Return the same, below zero by what is used twice."""
        left: int = self.memory_mib - self.memory_used_mib - self.memory_outside_mib
        return left


class Gpu(FreeCapacity, Row):
    """One physical device of a node."""

    audited = ("gpu", "uuid")
    uuid = models.CharField(max_length=40, unique=True)
    node = models.ForeignKey(Node, on_delete=models.PROTECT, related_name="gpus")
    index = models.PositiveIntegerField()
    model = models.CharField(max_length=200)
    memory_mib = models.PositiveBigIntegerField()
    links = models.JSONField(default=dict)
    # Of a GPU in MIG mode: its profiles, and the instances on it that are not its agent's (`apps.nodes.services.mig`).
    # Only claims with a profile are placed on it, each in an instance of its own. Null: not in MIG mode.
    mig = models.JSONField(null=True)
    # False once the agent no longer reports the device: nothing new is placed on it.
    present = models.BooleanField(default=True)
    cordoned = models.BooleanField(default=False, db_default=False, help_text="Takes no new claims; those on it stay.")
    # Reason why nothing new is placed on it ("XID 79"); empty: healthy. Follows from its conditions.
    unhealthy = models.CharField(max_length=200, blank=True, default="", db_default="")
    # An operator marked all reports up to this time (by the agent's clock) as resolved.
    cleared_through_seconds = models.FloatField(default=0.0, db_default=0.0)
    # How its claims share it: its pool's when the first of those that are on it was placed.
    backend = models.CharField(max_length=10, choices=BackEnd, default=BackEnd.TURNS, db_default=BackEnd.TURNS)
    # Who shares an MPS server on it: as its pool said then, too.
    mps_group = models.CharField(max_length=10, choices=MpsGroup, default=MpsGroup.TENANT, db_default=MpsGroup.TENANT)
    core_used = models.PositiveIntegerField(default=0)
    memory_used_mib = models.PositiveBigIntegerField(default=0)
    # In use by pods without a claim, or before they have one.
    core_outside = models.PositiveIntegerField(default=0, db_default=0)
    memory_outside_mib = models.PositiveBigIntegerField(default=0, db_default=0)
    # Part of core_used that is idle and lent to best-effort claims. Their core_borrowed is not allocated, so it may
    # exceed core_lent once an owner has taken its share back.
    core_lent = models.PositiveIntegerField(default=0, db_default=0)
    core_borrowed = models.PositiveIntegerField(default=0, db_default=0)

    class Meta:
        verbose_name = "GPU"
        ordering = ["node_id", "index"]
        indexes = [models.Index(fields=["node"], name="gpu_ill", condition=ILL)]
        constraints = checks(
            gpu_backend_known=Q(backend__in=BackEnd.values),
            gpu_mps_group_known=Q(mps_group__in=MpsGroup.values),
            gpu_core_promised_once=Q(core_used__lte=WHOLE),
            gpu_lends_what_is_promised=Q(core_lent__lte=F("core_used")),
            gpu_memory_promised_once=Q(memory_used_mib__lte=F("memory_mib")) | Q(present=False),
        )

    def __str__(self) -> str:
        return self.uuid
