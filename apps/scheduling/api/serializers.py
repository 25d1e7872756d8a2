"""Serializers of claims, assignments, rounds and utilization."""

from dataclasses import asdict
from datetime import timedelta
from typing import Any, ClassVar

from django.utils import timezone
from django.utils.translation import gettext_lazy as _
from rest_framework import serializers

from apps.nodes.api.serializers import LABEL_NAME, LABEL_WRONG, LabelsField
from apps.quotas.api.serializers import PoolByName, TenantBySlug
from apps.quotas.models.limits import MOST, ClaimField
from apps.quotas.models.row import MOST_NAME
from apps.scheduling.api import instance_fields, memory_fields, remote_fields
from apps.scheduling.models import AssignmentState, ClaimState, Reservation, Round
from apps.scheduling.models.assignment import Assignment
from apps.scheduling.models.choices import Idle, OverQuota
from apps.scheduling.models.claim import MOST_OF_A_GROUP, MOST_WEIGHT, Claim
from apps.scheduling.models.orders import SuspendedBy
from apps.scheduling.services.cycles.replays import gpus_seen
from gpucloud.api import shown
from gpucloud.api.serializers import Strict, StrictInteger
from gpucloud.api.shown import Columns
from gpucloud.schedules import EXAMPLE, MOST_LETTERS
from gpucloud.schedules import validate as validate_schedule

MAX_MEMORY_MIB = MOST[ClaimField.MEMORY_MIB]
# A claim that should start later than this needs a reservation.
LATEST_START = timedelta(days=366)
GROUP_HELP = (
    "Claims of one tenant and pool with the same group and group_size are placed together, as soon as there are "
    "group_size of them, or wait."
)
MOST_HELP = (
    "Makes the group elastic: one request makes its first group_size claims, which are placed together. More like them "
    "join one by one, up to this number, while no other claim waits for GPUs. Where room is needed, those above "
    "group_size leave first. The group ends with its first claim."
)
NEEDED_HELP = "Needed, unless the tenant has a default for it (/api/v1/limit-ranges/)."
WEIGHT_HELP = _(
    "Where the pool's policy is `weighted`: the claim's part, among the weights of those that want the GPU. "
    "Under `burst` and `preempt`: its part of what others leave."
)
CLASS_HELP = _(
    "A `best-effort` claim may be placed on core that others lend, without a guarantee. Where the pool's policy is "
    "`preempt` it always gets only what the guaranteed ones leave."
)
MOVABLE_HELP = _("True: it may be moved to another node, where its programs start again from what they saved.")
REBALANCE_HELP = _(
    "False: the rebalancer and the pool's idle_rule only report this claim and do not change it; what it lends is "
    "given back at once."
)


class ClassField(serializers.ChoiceField):
    """`guaranteed` or `best-effort`; stored as `best_effort`."""

    answers: ClassVar = {bool: lambda value: "best-effort" if value else "guaranteed"}

    def __init__(self, **kwargs: Any) -> None:
        kwargs = {"source": "best_effort", **kwargs}
        super().__init__(choices=["guaranteed", "best-effort"], help_text=CLASS_HELP, **kwargs)

    def to_internal_value(self, data: Any) -> bool:  # type: ignore[override]
        return bool(super().to_internal_value(data) == "best-effort")

    def to_representation(self, value: Any) -> str:
        return "best-effort" if value else "guaranteed"


class ReservationByUid(serializers.UUIDField):
    """A reservation by its uid; one that the caller may not see does not exist."""

    default_error_messages = {"does_not_exist": "There is no reservation {value} that you may use."}

    def to_internal_value(self, data: Any) -> Any:
        """Return the row."""
        uid = super().to_internal_value(data)
        visible = Reservation.objects.visible_to(self.context["request"].user).select_related("tenant", "pool")
        row = visible.filter(uid=uid).first()
        if row is None:
            self.fail("does_not_exist", value=uid)
        return row

    def to_representation(self, value: Any) -> Any:
        """Return its uid."""
        return super().to_representation(value.uid)


class ReasonSerializer(Strict):
    """A reason for which a claim waits."""

    code = shown.text()
    gpus = shown.integer("The number of GPUs that this rules out.")
    detail = shown.text()


class ClaimConditionSerializer(Strict):
    """A problem that a claim has now."""

    type = shown.choice(["unreachable", "below-guarantee", "idle", "memory-out"])
    since = shown.time("It lasts at least since then.")
    detail = shown.text()


class AssignmentSerializer(Strict):
    """One claim's share of one GPU."""

    uid = shown.uid()
    claim = shown.uid(source="claim.uid")
    node = shown.text(source="gpu.node.name")
    gpu_uuid = shown.text(source="gpu.uuid")
    gpu_index = shown.integer(source="gpu.index")
    gpu_unhealthy = shown.text("The problem of the GPU; empty: it is healthy.", source="gpu.unhealthy")
    columns = Columns(
        Assignment,
        "core_request core_limit memory_mib memory_limit_mib mig_start mig_size generation observed_generation state "
        "reason in_force_at memory_out_mib memory_out_since created_at updated_at",
    )
    host_memory_mib = shown.integer(
        "The node's memory charged for what its programs had on the GPU, or may have to move there.",
        source="held_host_memory_mib",
    )


def share_field(name: ClaimField, help_text: str | None = None, **more: Any) -> StrictInteger:
    """Return a field for one amount of a share; what is left out is the tenant's default, or stays."""
    return StrictInteger(min_value=1, max_value=MOST[name], required=False, help_text=help_text, **more)


def label_field(help_text: str) -> serializers.RegexField:
    """Return a field for a label of a claim."""
    return serializers.RegexField(
        LABEL_NAME, allow_null=True, default=None, help_text=help_text, error_messages={"invalid": LABEL_WRONG}
    )


def schedule_field(**more: Any) -> serializers.CharField:
    """Return the field of a claim's weekly window."""
    words = (
        f"The weekly window in which it runs, {EXAMPLE}; outside of it, it is suspended. Empty: it has "
        "none. A new claim that leaves it out has the `default_schedule` of its pool."
    )
    return serializers.CharField(
        max_length=MOST_LETTERS, allow_blank=True, validators=[validate_schedule], help_text=words, **more
    )


class RotationSerializer(Strict):
    """The part of a claim in the rotation of its GPUs: claims that do not fit together share them by time."""

    place = shown.integer("0: it is in; 1: it comes in next on its GPUs. Null: not known yet.", null=True)
    changes_at = shown.time("About when it goes out, or comes in. Null: not known yet.", null=True)
    served_gpu_seconds = shown.integer(
        "The GPU time that it had, up to its last move: its share of each of its GPUs. Null: it only waits so far.",
        null=True,
    )


class PackProfileSerializer(Strict):
    """The rates that a claim had alone on its GPU, and what it keeps of them beside another claim."""

    launches = shown.number("Kernels and graphs launched a second, alone on its GPU.")
    core_percent = shown.number("GPU time alone on its GPU.", source="core")
    measured_at = shown.time("The end of that window.")
    kept_percent = shown.number(
        "Its launches beside another claim, in percent of those alone. Null: it is alone, or does not want the GPU.",
        null=True,
        source="kept",
    )


class ClaimSerializer(Strict):
    """A claim: pieces of GPUs, requested by a tenant."""

    uid = shown.uid()
    tenant = TenantBySlug()
    name = serializers.CharField(max_length=MOST_NAME, default="unnamed")
    pool = PoolByName(allow_null=True, default=None, help_text="Null: the pool `default`.")
    gpu_count = share_field(ClaimField.GPU_COUNT, "1 unless given.")
    core_request = share_field(ClaimField.CORE_REQUEST, f"Percent of each GPU, guaranteed. {NEEDED_HELP}")
    core_limit = share_field(ClaimField.CORE_LIMIT, "Percent, the ceiling; core_request unless given.")
    memory_mib = share_field(ClaimField.MEMORY_MIB, f"On each GPU. {NEEDED_HELP}")
    memory_limit_mib = memory_fields.memory_limit(default=None)
    weight = StrictInteger(min_value=1, max_value=MOST_WEIGHT, default=1, help_text=WEIGHT_HELP)
    rebalance = serializers.BooleanField(default=True, help_text=REBALANCE_HELP)
    movable = serializers.BooleanField(default=False, help_text=MOVABLE_HELP)
    remote = remote_fields.remote()
    schedule = schedule_field(required=False)
    isolation = instance_fields.isolation()
    profile = instance_fields.profile()
    own_core = instance_fields.own_core()
    own_memory_mib = instance_fields.own_memory_mib()
    instance_of = instance_fields.instance_of()
    gpu_model = serializers.CharField(
        max_length=200,
        allow_null=True,
        default=None,
        help_text="The model as NVML names it; several joined by `|`: any of them.",
    )
    priority = StrictInteger(min_value=-1000, max_value=1000, default=0, help_text="Higher goes first.")
    time_limit_seconds = StrictInteger(
        min_value=1,
        max_value=MOST[ClaimField.TIME_LIMIT_SECONDS],
        allow_null=True,
        required=False,
        help_text="The claim is released this long after it was placed.",
    )
    lease_seconds = StrictInteger(
        min_value=5,
        max_value=7 * 86400,
        allow_null=True,
        default=None,
        help_text="The claim is released this long after it was created or last renewed, placed or not.",
    )
    reservation = ReservationByUid(
        allow_null=True,
        default=None,
        help_text="An active reservation of the tenant: the claim runs in its room, takes over part of its charge, and "
        "ends with it.",
    )
    when_over_quota = serializers.ChoiceField(choices=OverQuota.choices, default=OverQuota.REFUSE)
    affinity = label_field("Claims of the tenant with this label share a GPU.")
    anti_affinity = label_field("Claims of the tenant with this label never share a GPU.")
    exclusion = label_field("On its GPUs only claims of the tenant with this label, and nobody else's.")
    node_selector = LabelsField(required=False, help_text="Labels that its node must have, all of them.")
    start_at = serializers.DateTimeField(
        allow_null=True, default=None, help_text="The earliest time to place it. It is charged from its creation."
    )
    group = serializers.RegexField(
        r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$", allow_null=True, default=None, help_text=GROUP_HELP
    )
    group_size = StrictInteger(
        min_value=1,
        max_value=MOST_OF_A_GROUP,
        allow_null=True,
        default=None,
        help_text="How many are placed together: 2 or more; of an elastic group 1 or more, the least with which it "
        "runs. 1 on a claim that joins such a group while it runs.",
    )
    group_most = StrictInteger(
        min_value=2, max_value=MOST_OF_A_GROUP, allow_null=True, default=None, help_text=MOST_HELP
    )
    group_uid = shown.uid(help_text="The elastic group (/api/v1/groups/): the uid of its first claim.", null=True)
    used_by = shown.text("The pod with its container, or the ResourceClaim, of a cluster that it is for; empty: none.")
    state = shown.choice(ClaimState.choices)
    reasons = ReasonSerializer(many=True, read_only=True)
    estimated_start_at = serializers.SerializerMethodField(
        help_text="The estimated start of a waiting claim; null in lists, and if it cannot be estimated."
    )
    generation = shown.integer()
    observed_generation = serializers.SerializerMethodField()
    columns_1 = Columns(Claim, "created_by created_at updated_at lease_until")
    reachable = serializers.SerializerMethodField(
        help_text="False: its node is lost, so its state is unknown. Null: no GPU carries it."
    )
    unreachable_since = shown.time("The last heartbeat of its lost node; null: its node is heard.", null=True)
    lent_core = shown.integer("The idle part of core_request that best-effort claims may use until the claim needs it.")
    borrowed_core = shown.integer("The core that a best-effort claim borrows from others; none of it is guaranteed.")
    asked_core_limit = shown.integer("The core_limit set before the rebalancer set another one.", null=True)
    host_memory_mib = shown.integer(
        "The memory of its node that is charged, for all its GPUs: while it is suspended, and for what it may borrow."
    )
    suspended_by = shown.text(
        f"By whose order it is put aside, until it is active again: {', '.join(SuspendedBy.values)}; empty: it is not."
    )
    moves_to = shown.text("The node to which it moves; null: it does not move to another node.", null=True)
    moves_by = shown.choice(
        ["carry", "restart"],
        "How it moves to another node: its running programs are carried there, or end and start again. Null: it does "
        "not move.",
        null=True,
    )
    rotation = RotationSerializer(
        read_only=True,
        allow_null=True,
        help_text="Its part in the rotation of its GPUs. Null: it takes no part in one.",
    )
    pack_profile = PackProfileSerializer(
        read_only=True,
        allow_null=True,
        help_text="What packing measured of it. Null: nothing yet, or its pool does not pack.",
    )
    idle_since = shown.time("The time since when, at least, it is idle; null: not idle.", null=True)
    idle_reason = shown.choice(Idle.choices, "`idle`: its programs compute nothing; `unused`: it has none.", null=True)
    idle_release_at = shown.time(
        "It is released, or suspended by such a rule, then, unless it is used before.", null=True
    )
    conditions = ClaimConditionSerializer(many=True, read_only=True, help_text="The problems that it has now.")
    suspends_at = shown.time("Its schedule suspends it then; null: it has no such notice.", null=True)
    yields_at = shown.time("It runs on room that is reserved from then on, and ends then.", null=True)
    columns_2 = Columns(Claim, "assigned_at released_at version")
    preempt_at = shown.time(
        "The time of its preemption: it then goes back to the queue, or its pod is evicted.", null=True
    )
    assignments = AssignmentSerializer(source="present_assignments", many=True, read_only=True)
    class_ = ClassField(required=False)

    def get_estimated_start_at(self, claim: Any) -> str | None:
        """Return None: the estimate is computed for one claim at a time, and lists leave it out."""
        return None

    def get_observed_generation(self, claim: Any) -> int:
        """Return the least generation that every assignment has in force, of the place that counts."""
        rows = [item for item in claim.present_assignments if item.counterpart_id is None]
        return min((item.observed_generation for item in rows), default=0)

    def get_reachable(self, claim: Any) -> bool | None:
        """Return whether the nodes of its assignments are heard."""
        live = [item for item in claim.present_assignments if item.state != AssignmentState.RELEASED]
        return claim.unreachable_since is None if live else None

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Check limit against request, group against size, and the start; nothing is silently ignored."""
        if attrs.get("core_limit", 100) < attrs.get("core_request", 0):
            raise serializers.ValidationError({"core_limit": ["Must not be below core_request."]})
        instance_fields.check(attrs)
        if (attrs.get("group") is None) != (attrs.get("group_size") is None):
            raise serializers.ValidationError({"group_size": ["Give group and group_size together."]})
        _check_range(attrs)
        if (start_at := attrs.get("start_at")) and start_at > timezone.now() + LATEST_START:
            raise serializers.ValidationError({"start_at": [f"Must be within {LATEST_START.days} days."]})
        return attrs


def _check_range(attrs: dict[str, Any]) -> None:
    size, most = attrs.get("group_size"), attrs.get("group_most")
    if most is None:
        if size == 1:
            raise serializers.ValidationError({"group_size": ["Must be 2 or more, or give group_most."]})
    elif size is None or size > most:
        raise serializers.ValidationError({"group_most": ["Give group_size, which must not be above it."]})
    elif attrs.get("reservation") is not None:
        raise serializers.ValidationError({"group_most": ["An elastic group cannot run in a reservation."]})


class ResizeSerializer(Strict):
    """New limits, or another weight or class; fields left out stay."""

    core_request = share_field(ClaimField.CORE_REQUEST)
    core_limit = share_field(ClaimField.CORE_LIMIT)
    memory_mib = share_field(ClaimField.MEMORY_MIB)
    memory_limit_mib = memory_fields.memory_limit(required=False)
    weight = StrictInteger(min_value=1, max_value=MOST_WEIGHT, required=False, help_text=WEIGHT_HELP)
    rebalance = serializers.BooleanField(required=False, help_text=REBALANCE_HELP)
    movable = serializers.BooleanField(required=False, help_text=MOVABLE_HELP)
    remote = remote_fields.remote(for_change=True)
    schedule = schedule_field(required=False)
    own_core = instance_fields.own_core(for_change=True)
    own_memory_mib = instance_fields.own_memory_mib(for_change=True)
    class_ = ClassField(required=False)

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Refuse an empty change."""
        if not attrs:
            raise serializers.ValidationError(f"Give at least one of {', '.join(self.fields)}.")
        return attrs


class WaySerializer(Strict):
    """One launch method for a program."""

    name = shown.text("`exec`, `gpucloud`, `cdi`, `env-file`, `systemd-run` or `systemd-unit`.")
    title = shown.text("The name for people.")
    note = shown.text("Notes on its use.")
    line = shown.text("The lines to copy to the claim's node; replace the words in capitals.")


class EnvSerializer(Strict):
    """The environment of a process under the claim."""

    claim = shown.uid()
    node = shown.text()
    agent_socket = shown.text()
    secret = shown.text("Proves to the node's agent that you may use the claim.")
    env = serializers.DictField(child=serializers.CharField(), read_only=True)
    command = shown.text("Run on the node, with `env` set.")
    ways = WaySerializer(many=True, read_only=True, help_text="All launch methods; they give the same limits.")


class RoundSerializer(Strict):
    """A round of the scheduler."""

    id = shown.integer(source="pk")
    pool = shown.text(source="pool.name")
    columns = Columns(Round, "at duration_us considered placed")


class RoundDetailSerializer(RoundSerializer):
    """A round with what it saw and decided."""

    fleet = serializers.SerializerMethodField(help_text="Every GPU of the pool as the round found it.")
    queue = shown.json()
    decisions = shown.json()

    def get_fleet(self, done: Round) -> list[dict[str, Any]]:
        """Return the fleet from the snapshot and the changes since."""
        return [asdict(gpu) for gpu in gpus_seen(done)]
