"""Serializers of pools."""

from typing import TYPE_CHECKING, Any

from django.utils.translation import gettext_lazy as _
from rest_framework import serializers

from apps.quotas.models import RebalanceMode, RebalancePolicy, SharingPolicy
from apps.quotas.models.pool import (
    LEAST_FAILOVER_SECONDS,
    LEAST_HALF_LIFE_SECONDS,
    LEAST_IDLE_SECONDS,
    LEAST_KEPT_PERCENT,
    LEAST_SLICE_SECONDS,
    MOST_HALF_LIFE_SECONDS,
    MOST_IDLE_SECONDS,
    MOST_KERNEL_MS,
    MOST_OVERSUBSCRIBED,
    MOST_PARTS,
    MOST_REMOTE_MIB,
    MOST_SLICE_SECONDS,
    AuditPolicy,
    BackEnd,
    FailoverPolicy,
    FairShare,
    IdleRule,
    MigInstances,
    MpsGroup,
    PlacementPolicy,
    Pool,
    PreemptBy,
)
from apps.quotas.models.tenant import SLUG
from gpucloud.api import shown
from gpucloud.api.serializers import Strict, StrictInteger
from gpucloud.api.shown import Columns
from gpucloud.schedules import MOST_LETTERS
from gpucloud.schedules import validate as validate_schedule

if TYPE_CHECKING:
    from django_stubs_ext import StrPromise


def overcommit_field(what: str) -> StrictInteger:
    """Return a field for a ratio in percent."""
    return StrictInteger(
        min_value=1,
        max_value=10_000,
        allow_null=True,
        default=None,
        help_text=f"How much {what} quotas may promise together, in percent of what the GPUs have. Null: unchecked.",
    )


def bound(least: int, most: int, help_text: "StrPromise") -> StrictInteger:
    """Return a field for a bound of the rebalancer."""
    return StrictInteger(min_value=least, max_value=most, required=False, help_text=help_text)


class HoursSerializer(Strict):
    """Hours of a week, in UTC."""

    days = serializers.ListField(
        child=StrictInteger(min_value=0, max_value=6), min_length=1, max_length=7, help_text="Monday is 0."
    )
    to = serializers.RegexField(
        r"^(([01]\d|2[0-3]):[0-5]\d|24:00)$", help_text="A time at or before `from` is on the next day."
    )
    share_percent = StrictInteger(min_value=0, max_value=100, help_text="Percent of core_request; the rest is lent.")

    def get_fields(self) -> dict[str, Any]:
        """Add `from`, which is a keyword of Python and cannot be declared above."""
        begin = serializers.RegexField(r"^([01]\d|2[0-3]):[0-5]\d$", help_text="Such as 18:30.")
        return {**super().get_fields(), "from": begin}

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Require every field, even in a partial update of the pool."""
        if missing := self.fields.keys() - attrs.keys():
            raise serializers.ValidationError({name: ["This field is required."] for name in sorted(missing)})
        return attrs


class RebalanceBoundsSerializer(Strict):
    """Bounds of the rebalancer; help texts give the defaults."""

    window_seconds = bound(5, 86_400, _("Seconds of measurements that count; default 300."))
    cool_down_seconds = bound(
        5, 86_400, _("Seconds between two changes of a claim, except returns of lent core; default 300.")
    )
    floor_percent = bound(1, 100, _("Percent that a lending claim keeps; default 5."))
    ceiling_percent = bound(1, 100, _("Highest percent that a claim is raised to; default 100."))
    step_percent = bound(1, 100, _("Percentage points of core in one change; default 20."))
    margin_percent = bound(0, 1000, _("`percentile` only: margin in percent above the measured use; default 20."))
    idle_percent = bound(0, 100, _("Percent of a GPU up to which a claim counts as idle; default 2 %."))
    wake_percent = bound(
        1, 100, _("Percent of a GPU from which a claim counts as active; default 5. Above idle_percent.")
    )
    throttled_percent = bound(
        1, 100, _("Percent of time spent waiting from which a claim counts as throttled; default 20.")
    )
    most_changes = bound(1, 10_000, _("Changes in one run, except returns of lent core; default 50."))
    forecast_risk_percent = bound(
        1, 50, _("`forecast` only: percent of windows in which an owner may need more than is kept for it; default 5.")
    )
    calendar = HoursSerializer(many=True, required=False, help_text="`cron`: the first matching entry counts.")

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Refuse thresholds under which a claim is idle and awake at once."""
        if attrs.get("idle_percent", 2) >= attrs.get("wake_percent", 5):
            raise serializers.ValidationError({"wake_percent": ["Must be above idle_percent."]})
        return attrs


class PoolSerializer(Strict):
    """A pool."""

    name = serializers.RegexField(SLUG)
    description = serializers.CharField(max_length=500, allow_blank=True, default="")
    sharing_policy = serializers.ChoiceField(
        choices=SharingPolicy.choices,
        default=SharingPolicy.BURST,
        help_text=_("Distribution of a GPU's compute between competing claims."),
    )
    backend = serializers.ChoiceField(
        choices=BackEnd.choices,
        default=BackEnd.TURNS,
        help_text=_(
            "How several claims use one GPU. A change concerns claims that start later: a GPU with claims keeps its "
            "back end until the last of them has left."
        ),
    )
    mig = serializers.ChoiceField(
        choices=MigInstances.choices,
        default=MigInstances.ON_DEMAND,
        help_text=_(
            "Who makes the MIG instances on GPUs in MIG mode: the agent for each claim, or an operator, whose "
            "instances claims then get. Instances in use stay as they are until their claim has left."
        ),
    )
    mps_group = serializers.ChoiceField(
        choices=MpsGroup.choices,
        default=MpsGroup.TENANT,
        help_text=_(
            "Which claims on a GPU share an MPS server, with the back end `mps`. A fatal fault of one program ends all "
            "programs of its server: with `pool`, those of other tenants too. A GPU follows a change with its first "
            "claim after the last one has left."
        ),
    )
    core_ceiling = StrictInteger(
        min_value=1,
        max_value=100,
        default=100,
        help_text=_("Percent of each GPU that all its claims together may use."),
    )
    parts = StrictInteger(
        min_value=1, max_value=MOST_PARTS, default=1, help_text=_("`average` only: number of parts of each GPU.")
    )
    placement_policy = serializers.ChoiceField(
        choices=PlacementPolicy.choices,
        default=PlacementPolicy.GPUCLOUD,
        help_text=_("Choice between GPUs that fit a claim. A change applies to later placements."),
    )
    core_overcommit_percent = overcommit_field("core")
    memory_overcommit_percent = overcommit_field("memory")
    longest_kernel_ms = StrictInteger(
        min_value=1,
        max_value=MOST_KERNEL_MS,
        allow_null=True,
        default=None,
        help_text=_(
            "Milliseconds that a kernel or graph of a best-effort claim should take at most: nothing can interrupt it. "
            "If one takes longer, its owner and operators are told; null: they are not."
        ),
    )
    lend_reserved = serializers.BooleanField(
        default=False,
        help_text="Best-effort claims may use reserved room, and are ended, after a notice, when it is needed.",
    )
    lend_memory = serializers.BooleanField(
        default=False,
        help_text=_(
            "Best-effort claims may borrow memory that others of their GPU do not use, and give it back when it is "
            "needed (`memory_limit_mib`)."
        ),
    )
    reclaim_idle = serializers.BooleanField(
        default=False, help_text="Idle reservations are released, not only reported."
    )
    preemption_grace_seconds = StrictInteger(
        min_value=0,
        max_value=86400,
        allow_null=True,
        default=30,
        help_text="A tenant that lent what it now needs gets it back so long after the borrowers' claims were told; "
        "0: at once, null: only when they end. Of `preempt_by_priority` as well.",
    )
    preempt_by_priority = serializers.BooleanField(
        default=False,
        help_text="A claim that waits makes room for itself by its own tenant's claims of lower priority, after the "
        "same notice and grace.",
    )
    preempt_by = serializers.ChoiceField(
        choices=PreemptBy.choices, default=PreemptBy.RELEASE, help_text=_("Treatment of claims that are preempted.")
    )
    patience_seconds = StrictInteger(
        min_value=0,
        max_value=31_536_000,
        allow_null=True,
        default=14_400,
        help_text="Who has waited longer in the pool's queue goes first at its priority, oldest first, whatever its "
        "tenant holds; null: shares decide however long somebody waits.",
    )
    fair_share = serializers.ChoiceField(
        choices=FairShare.choices,
        default=FairShare.CURRENT,
        help_text=_("What counts of a tenant in the order of the queue, divided by its weight."),
    )
    half_life_seconds = StrictInteger(
        min_value=LEAST_HALF_LIFE_SECONDS,
        max_value=MOST_HALF_LIFE_SECONDS,
        default=604_800,
        help_text=_("With decayed fair share: the seconds after which what a tenant held counts half."),
    )
    oversubscribe = StrictInteger(
        min_value=2,
        max_value=MOST_OVERSUBSCRIBED,
        allow_null=True,
        default=None,
        help_text=_(
            "Claims that do not fit together share GPUs by time: those that are out are suspended. All claims of a GPU "
            "together may ask for so many times what it has. Null: no rotation."
        ),
    )
    slice_seconds = StrictInteger(
        min_value=LEAST_SLICE_SECONDS,
        max_value=MOST_SLICE_SECONDS,
        default=300,
        help_text=_(
            "Seconds for which a claim keeps its GPUs before it makes room for another one; longer where the swap "
            "would take more than a tenth of it."
        ),
    )
    default_schedule = serializers.CharField(
        max_length=MOST_LETTERS,
        allow_blank=True,
        default="",
        validators=[validate_schedule],
        help_text=_(
            "The weekly window of new claims that say none: weekdays 09:00-18:00 Europe/Berlin. Outside of it they are "
            "suspended. Empty: no window."
        ),
    )
    jobs = serializers.BooleanField(
        default=False,
        help_text=_(
            "Members of tenants may run jobs: commands that the agents of its nodes start, on nodes that are set up "
            "for it."
        ),
    )
    remote = serializers.BooleanField(
        default=False,
        help_text=_(
            "Programs on other machines may use the pool’s claims of tenants with `remote`, on nodes that are set up "
            "for it."
        ),
    )
    remote_mib_per_second = StrictInteger(
        min_value=1,
        max_value=MOST_REMOTE_MIB,
        allow_null=True,
        default=None,
        help_text=_("Most that such programs may move for each claim, both ways together, in MiB/s; null: no bound."),
    )
    pack_keep_percent = StrictInteger(
        min_value=LEAST_KEPT_PERCENT,
        max_value=100,
        allow_null=True,
        default=None,
        help_text=_(
            "While others wait, two claims are put together on a GPU if both keep at least this percentage of the "
            "rates that they had alone (90 is usual), and parted if they do not; as proposals, or at once where the "
            "rebalance mode is apply. Null: they are not."
        ),
    )
    audit_policy = serializers.ChoiceField(
        choices=AuditPolicy.choices,
        default=AuditPolicy.WARN,
        help_text=_("Reaction to a GPU process without a limit, or above its limit."),
    )
    repair_drift = serializers.BooleanField(
        default=True,
        help_text=_(
            "Auto-repair drift: undo manual changes on nodes at once. False: repairs on all nodes of the pool need an "
            "order, otherwise only on nodes that say so themselves."
        ),
    )
    rebalance_mode = serializers.ChoiceField(
        choices=RebalanceMode.choices, default=RebalanceMode.OFF, help_text=_("Action of the rebalancer in this pool.")
    )
    rebalance_policy = serializers.ChoiceField(
        choices=RebalancePolicy.choices,
        default=RebalancePolicy.FEEDBACK,
        help_text=_("Function that proposes changes."),
    )
    rebalance_bounds = RebalanceBoundsSerializer(
        required=False, help_text="Bounds of the rebalancer; a change replaces all of them."
    )
    idle_rule = serializers.ChoiceField(
        choices=IdleRule.choices,
        default=IdleRule.REPORT,
        help_text=_("Reaction to claims that are measured idle for idle_seconds."),
    )
    idle_seconds = StrictInteger(
        min_value=LEAST_IDLE_SECONDS,
        max_value=MOST_IDLE_SECONDS,
        default=1800,
        help_text=_("Seconds without use until a claim is idle. Time without measurements does not count."),
    )
    unused_seconds = StrictInteger(
        min_value=LEAST_IDLE_SECONDS,
        max_value=MOST_IDLE_SECONDS,
        allow_null=True,
        default=None,
        help_text=_("Seconds without a program until a claim is released, after the same notice. Null: never."),
    )
    failover_policy = serializers.ChoiceField(
        choices=FailoverPolicy.choices,
        default=FailoverPolicy.WAIT,
        help_text=_("Treatment of claims on a node that is lost for failover_after_seconds."),
    )
    failover_after_seconds = StrictInteger(
        min_value=LEAST_FAILOVER_SECONDS,
        max_value=MOST_IDLE_SECONDS,
        default=300,
        help_text=_("Seconds after a lost node's last heartbeat until its claims are requeued or released."),
    )
    idle_grace_seconds = StrictInteger(
        min_value=0,
        max_value=MOST_IDLE_SECONDS,
        default=600,
        help_text=_("Seconds between notice and suspension or release; a claim that is used meanwhile stays."),
    )
    changed = Columns(Pool, "version created_at updated_at")


class PoolChangeSerializer(PoolSerializer):
    """Changeable fields of a pool."""

    name = shown.text()
