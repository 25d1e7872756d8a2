"""Assignments: one claim's share of one GPU, the vGPU."""

import uuid

from django.contrib.postgres.constraints import ExclusionConstraint
from django.contrib.postgres.fields import BigIntegerRangeField, RangeOperators
from django.db import models
from django.db.models import F, Q

from apps.nodes.models import Gpu
from apps.quotas.models.row import Row, checks
from apps.scheduling.models.claim import Claim


class AssignmentState(models.TextChoices):
    """States. `in_force`: the limits are in force. `over_limit`: they are, and more memory is in use than allowed.

    In `suspending` and `suspended` the claim's programs are wanted off the GPU, in `resuming` they are wanted back.
    """

    PENDING = "pending"
    IN_FORCE = "in_force"
    OVER_LIMIT = "over_limit"
    SUSPENDING = "suspending"
    SUSPENDED = "suspended"
    RESUMING = "resuming"
    RELEASING = "releasing"
    RELEASED = "released"
    FAILED = "failed"


# States in which the programs are to leave the GPU, or have left it.
WANTED_SUSPENDED = (AssignmentState.SUSPENDING, AssignmentState.SUSPENDED)


# The memory slices of a GPU, at most: a GPU's are numbered from this many times its key.
MOST_SLICES = 16
FIRST_SLICE = F("gpu") * MOST_SLICES + F("mig_start")
SLICES = models.Func(
    FIRST_SLICE, FIRST_SLICE + F("mig_size"), function="int8range", output_field=BigIntegerRangeField()
)


class AssignmentQuerySet(models.QuerySet["Assignment"]):
    """Assignments, some of which are history."""

    def live(self) -> "AssignmentQuerySet":
        """Return the assignments that hold something."""
        return self.exclude(state=AssignmentState.RELEASED)


class Assignment(Row):
    """Desired limits, their generation, and the generation that the agent reports as in force.

    `held_*` is what the GPU is charged: it grows with the desired limits at once, and falls only when the agent has
    confirmed the smaller ones.
    """

    uid = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    claim = models.ForeignKey(Claim, on_delete=models.PROTECT, related_name="assignments")
    gpu = models.ForeignKey(Gpu, on_delete=models.PROTECT, related_name="assignments")
    # While its programs move: the other GPU of the node on which it holds as much as on `gpu`. Where they go, until
    # they have left `gpu`; then where they came from.
    other_gpu = models.ForeignKey(Gpu, on_delete=models.PROTECT, null=True, related_name="+")
    # Of a claim that resumes on another GPU of its node: where it was suspended, and holds nothing. After the node has
    # refused that: `gpu` itself, the only one on which it resumes from then on.
    return_gpu = models.ForeignKey(Gpu, on_delete=models.SET_NULL, null=True, related_name="+", db_index=False)
    # While its claim moves to another node: the assignment that its tenant's quota counts instead of this one. Of the
    # new place it is the old one's, and once the claim is in force there, of the old one the new one's.
    counterpart = models.OneToOneField("self", on_delete=models.PROTECT, null=True, related_name="+")
    # Its programs leave the GPU by ending: after SIGUSR1 they have this time to save their state. Null: suspended.
    end_seconds = models.PositiveSmallIntegerField(null=True)
    # While its running programs are carried to another node: the ticket of the new node, on both sides, and nothing in
    # it until that node has offered one. A secret: for the old node only. Null: they are not carried.
    carry = models.JSONField(null=True)
    core_request = models.PositiveSmallIntegerField()
    core_limit = models.PositiveSmallIntegerField()
    memory_mib = models.PositiveBigIntegerField()
    memory_limit_mib = models.PositiveBigIntegerField(null=True)
    held_core = models.PositiveSmallIntegerField()
    held_memory_mib = models.PositiveBigIntegerField()
    # The node's memory that it is charged while its programs' GPU memory is, or may be, in there. What it borrows may
    # be there at any time.
    held_host_memory_mib = models.PositiveBigIntegerField(default=0, db_default=0)
    # `lent_core`: the idle part of what it holds that is lent. `borrowed_core`: lent core that it uses; then it holds
    # no core of its own.
    lent_core = models.PositiveSmallIntegerField(default=0, db_default=0)
    borrowed_core = models.PositiveSmallIntegerField(default=0, db_default=0)
    # On a GPU in MIG mode: the memory slices of its instance, of the profile of its claim.
    mig_start = models.PositiveSmallIntegerField(null=True)
    mig_size = models.PositiveSmallIntegerField(null=True)
    # Of an instance that its claim opens: what claims in it may still take. The constraint refuses to give it twice.
    room_core = models.PositiveSmallIntegerField(null=True)
    room_memory_mib = models.PositiveBigIntegerField(null=True)
    # What it has taken of an opened instance, as `held_*`: the own part of the claim that opened it, or the share of a
    # claim in it, which holds nothing of the GPU.
    taken_core = models.PositiveSmallIntegerField(default=0, db_default=0)
    taken_memory_mib = models.PositiveBigIntegerField(default=0, db_default=0)
    generation = models.PositiveIntegerField(default=1)
    observed_generation = models.PositiveIntegerField(default=0)
    state = models.CharField(max_length=12, choices=AssignmentState, default=AssignmentState.PENDING)
    reason = models.CharField(max_length=2000, null=True)
    in_force_at = models.DateTimeField(null=True)
    # While memory that it borrowed is in host memory, as last measured (`services/claims/memory_out.py`).
    memory_out_mib = models.PositiveBigIntegerField(null=True)
    memory_out_since = models.DateTimeField(null=True)

    objects = AssignmentQuerySet.as_manager()

    class Meta:
        ordering = ["pk"]
        constraints = [
            *checks(
                assignment_state_known=Q(state__in=AssignmentState.values),
                assignment_released_holds_nothing=~Q(state="released")
                | Q(
                    held_core=0,
                    held_memory_mib=0,
                    held_host_memory_mib=0,
                    other_gpu=None,
                    taken_core=0,
                    taken_memory_mib=0,
                ),
                assignment_carried_or_restarted=Q(carry__isnull=True) | Q(end_seconds__isnull=True),
                assignment_lends_what_it_holds=Q(lent_core__lte=F("held_core")),
                assignment_mig_whole=(
                    Q(mig_start__isnull=True, mig_size__isnull=True)
                    | Q(mig_start__gte=0, mig_size__gte=1, mig_start__lte=MOST_SLICES - F("mig_size"))
                ),
                # What claims return never makes an instance larger than it is.
                assignment_room_in_instance=(
                    Q(room_core__isnull=True, room_memory_mib__isnull=True)
                    | Q(
                        room_core__lte=F("core_request") - F("taken_core"),
                        room_memory_mib__lte=F("memory_mib") - F("taken_memory_mib"),
                    )
                ),
            ),
            # Two instances of a GPU never share a memory slice: GPU and slice are one number.
            ExclusionConstraint(
                name="assignment_mig_slices_once",
                expressions=[(SLICES, RangeOperators.OVERLAPS)],
                condition=Q(mig_start__isnull=False) & ~Q(state="released"),
            ),
            models.UniqueConstraint(
                fields=["claim", "gpu"], condition=~Q(state="released"), name="assignment_once_per_gpu"
            ),
        ]
        indexes = [
            models.Index(fields=["gpu"], condition=~Q(state="released"), name="assignment_live_on_gpu"),
            models.Index(fields=["state", "-id"], name="assignment_alive", condition=~Q(state="released")),
            models.Index(fields=["updated_at"], name="assignment_by_change"),
            # Those whose node has not confirmed the last change: few, and looked for by every overview.
            models.Index(
                fields=["updated_at"],
                name="assignment_behind",
                condition=~Q(state="released") & Q(observed_generation__lt=F("generation")),
            ),
        ]

    @property
    def allocatable_mib(self) -> int:
        """The memory of its GPU that its programs may allocate, promised and borrowed; at most all of it."""
        return min(self.memory_limit_mib or self.memory_mib, self.gpu.memory_mib)

    @property
    def gpus_held(self) -> list[int]:
        """The keys of the GPUs on which it holds its share: of two while its programs move."""
        return [key for key in (self.gpu_id, self.other_gpu_id) if key is not None]

    @property
    def is_target(self) -> bool:
        """True if its claim moves to this GPU from another node, and does not run here yet."""
        return self.counterpart_id is not None and self.state not in (
            AssignmentState.RELEASING,
            AssignmentState.RELEASED,
        )

    def __str__(self) -> str:
        return f"{self.claim} on {self.gpu}"
