"""Serializers of reservations and of a pool's calendar."""

from typing import Any

from django.utils import timezone
from rest_framework import serializers

from apps.quotas.api.serializers import PoolByName, TenantBySlug
from apps.quotas.models.limits import MOST, ClaimField
from apps.quotas.models.row import MOST_NAME
from apps.scheduling.api.serializers import MAX_MEMORY_MIB, NEEDED_HELP, ReasonSerializer
from apps.scheduling.models import ReservationState
from apps.scheduling.models.reservation import Ending
from gpucloud.api.serializers import Strict, StrictInteger

DAY = 86400
HOLDERS = [("claim", "claim"), ("reservation", "reservation"), ("outside", "outside")]
OUTSIDE = "`outside`: used by pods without a claim."


class RulesSerializer(Strict):
    """The fields of a reservation that can be changed."""

    name = serializers.CharField(max_length=MOST_NAME, default="unnamed")
    start_at = serializers.DateTimeField(required=False, help_text="Now, unless given.")
    end_at = serializers.DateTimeField(help_text="Its claims end with it.")
    grace_seconds = StrictInteger(
        min_value=60, max_value=7 * DAY, allow_null=True, default=900, help_text="Released if no claim is made in "
        "it for this long after it began. Null: never.",
    )  # fmt: skip
    idle_percent = StrictInteger(
        min_value=1, max_value=100, allow_null=True, default=5, help_text="Reported (and released, if the pool has "
        "`reclaim_idle`) when its claims use less of its core. Null: not watched.",
    )  # fmt: skip
    idle_seconds = StrictInteger(min_value=60, max_value=DAY, default=1800, help_text="The period for `idle_percent`.")


class ReservedGpuSerializer(Strict):
    """A GPU of a reservation."""

    uuid = serializers.CharField(read_only=True)
    node = serializers.CharField(source="node.name", read_only=True)
    index = serializers.IntegerField(read_only=True)


class ReservationSerializer(RulesSerializer):
    """A reservation: pieces of GPUs for a window of time."""

    uid = serializers.UUIDField(read_only=True)
    series = serializers.UUIDField(
        read_only=True, allow_null=True, help_text="Shared by those that were booked weekly."
    )
    tenant = TenantBySlug()
    pool = PoolByName(allow_null=True, default=None, help_text="Null: the pool `default`.")
    gpu_count = StrictInteger(
        min_value=1, max_value=MOST[ClaimField.GPU_COUNT], required=False, help_text="1 unless given."
    )
    core_request = StrictInteger(
        min_value=1, max_value=100, required=False, help_text=f"Percent of each GPU. {NEEDED_HELP}"
    )
    memory_mib = StrictInteger(
        min_value=1, max_value=MAX_MEMORY_MIB, required=False, help_text=f"On each GPU. {NEEDED_HELP}"
    )
    gpu_model = serializers.CharField(max_length=200, allow_null=True, default=None)
    weekly_until = serializers.DateTimeField(
        allow_null=True,
        default=None,
        write_only=True,
        help_text="Booked again every week while it begins before this time, all or none; the answer is the first.",
    )
    state = serializers.ChoiceField(choices=ReservationState.choices, read_only=True)
    claimed = serializers.SerializerMethodField(help_text="Whether a claim was made in it.")
    ending = serializers.ChoiceField(choices=Ending.choices, read_only=True, allow_null=True)
    reason = serializers.CharField(read_only=True, allow_null=True, help_text="Why it could not begin on time.")
    gpus = ReservedGpuSerializer(many=True, read_only=True)
    charged = serializers.DictField(
        child=serializers.IntegerField(), read_only=True, help_text="The amounts charged to quotas beside its claims."
    )
    started_at = serializers.DateTimeField(read_only=True, allow_null=True)
    idle_since = serializers.DateTimeField(read_only=True, allow_null=True)
    lost_since = serializers.DateTimeField(
        read_only=True, allow_null=True, help_text="The time since when its node is silent: it is charged until an "
        "operator forgets the node, or you release it.",
    )  # fmt: skip
    released_at = serializers.DateTimeField(read_only=True, allow_null=True)
    created_by = serializers.CharField(read_only=True)
    created_at = serializers.DateTimeField(read_only=True)
    updated_at = serializers.DateTimeField(read_only=True)
    version = serializers.IntegerField(read_only=True)

    def get_claimed(self, row: Any) -> bool:
        """Return True if a claim was made in it."""
        return row.claimed_at is not None

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Set the begin of a reservation without one to now."""
        attrs.setdefault("start_at", timezone.now())
        return attrs


class ConflictSerializer(Strict):
    """A hold on room in the window; of another tenant only that it exists, and until when."""

    kind = serializers.ChoiceField(choices=HOLDERS, read_only=True, help_text=OUTSIDE)
    tenant = serializers.CharField(read_only=True, allow_null=True)
    uid = serializers.CharField(read_only=True, allow_null=True)
    name = serializers.CharField(read_only=True, allow_null=True)
    gpus = serializers.IntegerField(read_only=True, help_text="The number of GPUs.")
    until = serializers.DateTimeField(read_only=True, allow_null=True, help_text="Null: without an end.")
    detail = serializers.CharField(read_only=True)


class WindowSerializer(Strict):
    """A free window."""

    start_at = serializers.DateTimeField(read_only=True)
    end_at = serializers.DateTimeField(read_only=True)
    gpus = serializers.ListField(child=serializers.CharField(), read_only=True)


class BookingPreviewSerializer(Strict):
    """The effects of a booking."""

    dry_run = serializers.BooleanField(read_only=True)
    fits = serializers.BooleanField(read_only=True)
    detail = serializers.CharField(read_only=True, help_text="The same as text: why not, and what would fit instead.")
    gpus = serializers.ListField(
        child=serializers.CharField(), read_only=True, help_text="The GPUs that it would have."
    )
    reasons = ReasonSerializer(many=True, read_only=True)
    conflicts = ConflictSerializer(many=True, read_only=True)
    windows = WindowSerializer(many=True, read_only=True, help_text="The earliest free ones of this length.")


class _FromTo(Strict):
    """A period; `from` is a Python keyword, so it cannot be declared as a field."""

    to = serializers.DateTimeField(read_only=True)

    def get_fields(self) -> dict[str, Any]:
        """Return the fields with `from`."""
        return {"from": serializers.DateTimeField(read_only=True), **super().get_fields()}


class IntervalSerializer(_FromTo):
    """An amount of a GPU that is taken for a time."""

    core = serializers.IntegerField(read_only=True)
    memory_mib = serializers.IntegerField(read_only=True)


class HoldSerializer(Strict):
    """A hold and its holder; null if that is another tenant's."""

    kind = serializers.ChoiceField(choices=HOLDERS, read_only=True, help_text=OUTSIDE)
    uid = serializers.CharField(read_only=True, allow_null=True)
    name = serializers.CharField(read_only=True, allow_null=True)
    tenant = serializers.CharField(read_only=True, allow_null=True)
    reservation = serializers.CharField(
        read_only=True, allow_null=True, help_text="The reservation in which a claim runs."
    )
    core = serializers.IntegerField(read_only=True)
    memory_mib = serializers.IntegerField(read_only=True)
    start_at = serializers.DateTimeField(read_only=True, allow_null=True)
    end_at = serializers.DateTimeField(read_only=True, allow_null=True, help_text="Null: without an end.")


class CalendarGpuSerializer(Strict):
    """The row of a GPU."""

    uuid = serializers.CharField(read_only=True)
    node = serializers.CharField(read_only=True)
    index = serializers.IntegerField(read_only=True)
    model = serializers.CharField(read_only=True)
    memory_mib = serializers.IntegerField(read_only=True)
    intervals = IntervalSerializer(many=True, read_only=True)
    holds = HoldSerializer(many=True, read_only=True)


class CalendarSerializer(_FromTo):
    """A pool's calendar."""

    pool = serializers.CharField(read_only=True)
    gpus = CalendarGpuSerializer(many=True, read_only=True)
    gpus_left_out = serializers.IntegerField(read_only=True, help_text="Use `node` to show them.")


class PeriodSerializer(Strict):
    """The parameters of a calendar."""

    to = serializers.DateTimeField(required=False)
    node = serializers.CharField(required=False)

    def get_fields(self) -> dict[str, Any]:
        """Return the fields with `from`."""
        return {"from": serializers.DateTimeField(required=False), **super().get_fields()}
