"""Reservations: pieces of GPUs for a window of time, booked before it begins."""

import uuid

from django.db import models
from django.db.models import F, Q
from django.utils.translation import gettext_noop

from apps.nodes.models import Gpu
from apps.quotas.models import Pool, Tenant
from apps.quotas.models.row import Owned, checks
from apps.scheduling.models.share import Share


class ReservationState(models.TextChoices):
    """States: booked → active (its window has begun) → released."""

    BOOKED = "booked"
    ACTIVE = "active"
    RELEASED = "released"


class Ending(models.TextChoices):
    """Reasons of a release. The audit log has them in English; a page shows them in the reader's language."""

    ENDED = "ended", gettext_noop("Its window is over")
    EARLY = "early", gettext_noop("Given back before the end")
    CANCELLED = "cancelled", gettext_noop("Given back before it began")
    NO_SHOW = "no-show", gettext_noop("Nobody claimed within its grace")
    IDLE = "idle", gettext_noop("Its claims were idle, and the pool reclaims such")
    NO_QUOTA = "no-quota", gettext_noop("The tenant's quota had no room for it when it began")
    FORGOTTEN = "forgotten", gettext_noop("Its machine was lost, and an operator has given it up")


OPEN = (ReservationState.BOOKED, ReservationState.ACTIVE)


class ReservationQuerySet(Owned["Reservation"]):
    """Reservations, selected by the principal who asks."""

    def open(self) -> "ReservationQuerySet":
        """Return the reservations that hold room, now or in their window."""
        return self.filter(state__in=OPEN)


class Reservation(Share):
    """The same share of each of `gpus`, from `start_at` to `end_at`.

    While it is active the tenant's quotas are charged for it: `charged_*` is the part that is not charged for a claim
    in it.
    """

    audited = ("reservation", "uid")
    uid = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    # Shared by reservations that were booked at once, a week apart.
    series = models.UUIDField(null=True, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="reservations")
    pool = models.ForeignKey(Pool, on_delete=models.PROTECT, related_name="reservations")
    name = models.CharField(max_length=200)
    gpus = models.ManyToManyField(Gpu, related_name="reservations")
    start_at = models.DateTimeField()
    end_at = models.DateTimeField()
    grace_seconds = models.PositiveIntegerField(null=True, help_text="Null: kept though nobody comes.")
    # It is reported, and released if the pool wants that, when its claims used less for this long.
    idle_percent = models.PositiveSmallIntegerField(null=True, help_text="Null: not watched.")
    idle_seconds = models.PositiveIntegerField(default=1800)
    state = models.CharField(max_length=10, choices=ReservationState, default=ReservationState.BOOKED)
    ending = models.CharField(max_length=10, choices=Ending, null=True)
    # The reason for which it could not begin on time, or is kept though it is idle.
    reason = models.CharField(max_length=2000, null=True)
    started_at = models.DateTimeField(null=True)
    claimed_at = models.DateTimeField(null=True, help_text="When the first claim in it was made.")
    idle_since = models.DateTimeField(null=True, help_text="Reported as idle then; null: it is used.")
    idle_checked_at = models.DateTimeField(null=True)
    lost_since = models.DateTimeField(null=True, help_text="Nothing is heard of its machine since; null: it is there.")
    released_at = models.DateTimeField(null=True)
    created_by = models.CharField(max_length=200)

    objects = ReservationQuerySet.as_manager()

    class Meta:
        ordering = ["-pk"]
        constraints = checks(
            reservation_state_known=Q(state__in=ReservationState.values),
            reservation_window_not_empty=Q(end_at__gt=F("start_at")),
            reservation_not_empty=Q(gpu_count__gte=1, memory_mib__gte=1),
            reservation_core_in_range=Q(core_request__gte=1, core_request__lte=100),
            reservation_ending_where_released=Q(state="released", ending__isnull=False)
            | (~Q(state="released") & Q(ending=None)),
            # Only active reservations are charged: booked and released ones cost nothing.
            reservation_charges_while_active=(
                Q(state="active") | Q(charged_core_percent=0, charged_memory_mib=0, charged_vgpus=0, charged_gpus=0)
            ),
        )
        indexes = [
            models.Index(fields=["tenant", "-id"], name="reservation_of_tenant"),
            models.Index(fields=["updated_at"], name="reservation_by_change"),
            models.Index(
                fields=["pool", "start_at"], name="reservation_open", condition=Q(state__in=["booked", "active"])
            ),
        ]

    def __str__(self) -> str:
        return f"{self.tenant}/{self.name}"
