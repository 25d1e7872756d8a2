"""Serializers of reservations and of a pool's calendar."""

from typing import Any

from django.utils import timezone
from rest_framework import serializers

from apps.nodes.models.gpu import Gpu
from apps.quotas.api.serializers import PoolByName, TenantBySlug
from apps.quotas.models.limits import ClaimField
from apps.quotas.models.row import MOST_NAME
from apps.scheduling.api.serializers import NEEDED_HELP, ReasonSerializer, share_field
from apps.scheduling.models import ReservationState
from apps.scheduling.models.reservation import Ending, Reservation
from gpucloud.api import shown
from gpucloud.api.serializers import Question, Strict, StrictInteger
from gpucloud.api.shown import Columns

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

    uuid = shown.text()
    node = shown.text(source="node.name")
    index = shown.integer()


class ReservationSerializer(RulesSerializer):
    """A reservation: pieces of GPUs for a window of time."""

    uid = shown.uid()
    series = shown.uid("Shared by those that were booked weekly.", null=True)
    tenant = TenantBySlug()
    pool = PoolByName(allow_null=True, default=None, help_text="Null: the pool `default`.")
    gpu_count = share_field(ClaimField.GPU_COUNT, "1 unless given.")
    core_request = share_field(ClaimField.CORE_REQUEST, f"Percent of each GPU. {NEEDED_HELP}")
    memory_mib = share_field(ClaimField.MEMORY_MIB, f"On each GPU. {NEEDED_HELP}")
    gpu_model = serializers.CharField(max_length=200, allow_null=True, default=None)
    weekly_until = serializers.DateTimeField(
        allow_null=True,
        default=None,
        write_only=True,
        help_text="Booked again every week while it begins before this time, all or none; the answer is the first.",
    )
    state = shown.choice(ReservationState.choices)
    claimed = serializers.SerializerMethodField(help_text="Whether a claim was made in it.")
    ending = shown.choice(Ending.choices, null=True)
    reason = shown.text("Why it could not begin on time, or is kept though it is idle.", null=True)
    gpus = ReservedGpuSerializer(many=True, read_only=True)
    charged = serializers.DictField(
        child=serializers.IntegerField(), read_only=True, help_text="The amounts charged to quotas beside its claims."
    )
    columns_1 = Columns(Reservation, "started_at idle_since")
    lost_since = shown.time(
        "The time since when its node is silent: it is charged until an operator forgets the node, or you release it.",
        null=True,
    )
    columns_2 = Columns(Reservation, "released_at created_by created_at updated_at version")

    def get_claimed(self, row: Any) -> bool:
        """Return True if a claim was made in it."""
        return row.claimed_at is not None

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Set the begin of a reservation without one to now."""
        attrs.setdefault("start_at", timezone.now())
        return attrs


class ConflictSerializer(Strict):
    """A hold on room in the window; of another tenant only that it exists, and until when."""

    kind = shown.choice(HOLDERS, OUTSIDE)
    tenant = shown.text(null=True)
    uid = shown.text(null=True)
    name = shown.text(null=True)
    gpus = shown.integer("The number of GPUs.")
    until = shown.time("Null: without an end.", null=True)
    detail = shown.text()


class WindowSerializer(Strict):
    """A free window."""

    start_at = shown.time()
    end_at = shown.time()
    gpus = shown.texts()


class BookingPreviewSerializer(Strict):
    """The effects of a booking."""

    dry_run = shown.flag()
    fits = shown.flag()
    detail = shown.text("The same as text: why not, and what would fit instead.")
    gpus = shown.texts("The GPUs that it would have.")
    reasons = ReasonSerializer(many=True, read_only=True)
    conflicts = ConflictSerializer(many=True, read_only=True)
    windows = WindowSerializer(many=True, read_only=True, help_text="The earliest free ones of this length.")


class _FromTo(Strict):
    """A period."""

    from_ = shown.time()
    to = shown.time()


class IntervalSerializer(_FromTo):
    """An amount of a GPU that is taken for a time."""

    core = shown.integer()
    memory_mib = shown.integer()


class HoldSerializer(Strict):
    """A hold and its holder; null if that is another tenant's."""

    kind = shown.choice(HOLDERS, OUTSIDE)
    uid = shown.text(null=True)
    name = shown.text(null=True)
    tenant = shown.text(null=True)
    reservation = shown.text("The reservation in which a claim runs.", null=True)
    core = shown.integer()
    memory_mib = shown.integer()
    start_at = shown.time(null=True)
    end_at = shown.time("Null: without an end.", null=True)


class CalendarGpuSerializer(Strict):
    """The row of a GPU."""

    uuid = shown.text()
    node = shown.text()
    columns = Columns(Gpu, "index model memory_mib")
    intervals = IntervalSerializer(many=True, read_only=True)
    holds = HoldSerializer(many=True, read_only=True)


class CalendarSerializer(_FromTo):
    """A pool's calendar."""

    pool = shown.text()
    gpus = CalendarGpuSerializer(many=True, read_only=True)
    gpus_left_out = shown.integer("Use `node` to show them.")


class CalendarQuestion(Question):
    """The parameters of a calendar."""

    from_ = serializers.DateTimeField(required=False, help_text="Now, unless given.")
    to = serializers.DateTimeField(required=False, help_text="A week after `from`, unless given; 92 days at most.")
    node = serializers.CharField(required=False, help_text="Only this node's GPUs.")
