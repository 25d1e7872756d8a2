"""Pools: named sets of nodes with one sharing policy."""

from django.core.validators import RegexValidator
from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from apps.quotas.models.row import Row, checks
from apps.quotas.models.tenant import SLUG
from gpucloud.schedules import MOST_LETTERS
from gpucloud.schedules import validate as validate_schedule
from gpucloud.web.natural_order import natural_name

DEFAULT = "default"
MOST_PARTS = 16
# A shorter time has too few samples; a longer one than a week is not useful.
LEAST_IDLE_SECONDS, MOST_IDLE_SECONDS = 10, 7 * 86_400
# More claims on one GPU would wait too long for it.
MOST_OVERSUBSCRIBED = 8
LEAST_SLICE_SECONDS, MOST_SLICE_SECONDS = 10, 86_400
# With less than half, two claims are better off one after the other.
LEAST_KEPT_PERCENT = 50
# A shorter half-life remembers less than one claim takes; a longer one than a year hardly forgets.
LEAST_HALF_LIFE_SECONDS, MOST_HALF_LIFE_SECONDS = 3600, 365 * 86_400
# Of a network that no machine has yet.
MOST_REMOTE_MIB = 1 << 20
MOST_KERNEL_MS = 60_000
# A restart of an agent or of its machine takes less.
LEAST_FAILOVER_SECONDS = 30


class SharingPolicy(models.TextChoices):
    """Distribution of a GPU's compute between competing claims; the nodes' arbiters enforce it."""

    BURST = "burst", _("Burst: core_request guaranteed, up to core_limit of what others leave")
    FIXED = "fixed", _("Fixed: core_request, no more")
    FAIR = "fair", _("Fair: equal parts for those that want the GPU now")
    WEIGHTED = "weighted", _("Weighted: parts by the claims' weights")
    AVERAGE = "average", _("Average: one of `parts` equal parts each; parts of nobody stay idle")
    PREEMPT = "preempt", _("Preempt: as burst, but best-effort claims get only what the others leave")
    NATIVE = "native", _("Native: the driver's own time slices, no limit of compute")


class BackEnd(models.TextChoices):
    """Mechanism by which several claims use one GPU; docs/backends.md compares them."""

    TURNS = "turns", _("Turns: claims take turns, by the sharing policy")
    MPS = "mps", _("MPS: claims run beside one another, each on its part of the multiprocessors")
    NATIVE = "native", _("Native: the driver's own time slices, and each claim's limit")


class MigInstances(models.TextChoices):
    """Maker of the MIG instances on a pool's GPUs in MIG mode."""

    ON_DEMAND = "on-demand", _("On demand: the agent makes an instance for each claim, and removes it")
    STATIC = "static", _("Static: claims get the instances that operators made, and those stay")


class MpsGroup(models.TextChoices):
    """Claims that share an MPS server: a fatal fault of a program takes down all programs of its server."""

    TENANT = "tenant", _("Tenant: one server for each tenant on a GPU; another tenant's faults end nothing")
    POOL = "pool", _("Pool: one server for all claims on a GPU; a fatal fault ends the programs of all its tenants")


# Policies under which the arbiter lends idle compute and still guarantees requests.
LENDING_POLICIES = frozenset({SharingPolicy.BURST, SharingPolicy.PREEMPT})


class AuditPolicy(models.TextChoices):
    """Reaction to a GPU process without a limit, or above its limit (`agent.claims.audit`)."""

    WARN = "warn", _("Warn: report only")
    KILL = "kill", _("Kill: end the process, SIGTERM first; processes of system users are only reported")
    FENCE = "fence", _("Fence: its node takes no new claims until an operator lifts the fence")


class RebalanceMode(models.TextChoices):
    """Reaction of the rebalancer to its findings."""

    OFF = "off", _("Off: no rebalancing")
    PROPOSE = "propose", _("Propose: changes need approval")
    APPLY = "apply", _("Apply: apply changes that cost the owner nothing, propose the rest")


class RebalancePolicy(models.TextChoices):
    """Function that proposes changes (`apps.rebalancing`)."""

    FEEDBACK = "feedback", _("Feedback: raise limits of what is throttled, lend what is idle")
    PERCENTILE = "percentile", _("Percentile: guarantee the 95th percentile of use and a margin")
    CRON = "cron", _("Cron: shares by weekday and hour")
    FORECAST = "forecast", _("Forecast: lend what owners will not need in the next minutes, at the pool’s risk")


class IdleRule(models.TextChoices):
    """Reaction to a claim that is idle for long (`apps.scheduling.services.rebalancing.idleness`)."""

    OFF = "off", _("Off: no rebalancing")
    REPORT = "report", _("Report: report only")
    SHRINK = "shrink", _("Shrink: lend the guarantee above a floor until the claim is used again")
    SUSPEND = "suspend", _("Suspend: suspend after notice, unless the claim is used again")
    RELEASE = "release", _("Release: release after notice, unless the claim is used again")


class PreemptBy(models.TextChoices):
    """Treatment of preempted claims (`apps.scheduling.services.reclaiming.preemption`)."""

    RELEASE = "release", _("Release: their programs end, and they return to the queue")
    SUSPEND = "suspend", _("Suspend: their programs stop, and go on when there is room; released where that fails")


class FailoverPolicy(models.TextChoices):
    """Reaction to claims on a node that is lost for long (`apps.scheduling.services.reclaiming.failover`)."""

    WAIT = "wait", _("Wait: the claims stay until the node returns")
    REQUEUE = "requeue", _("Requeue: the claims return to the queue")
    RELEASE = "release", _("Release: the claims are released")


class FairShare(models.TextChoices):
    """The use of a tenant that counts in the order of the queue (`apps.scheduling.core.fair_share`)."""

    CURRENT = "current", _("Current: what it holds now")
    DECAYED = "decayed", _("Decayed: what it holds now and what it held before, the less the older it is")


class PlacementPolicy(models.TextChoices):
    """Choice between GPUs that fit a claim (`apps.scheduling.core.placement.policies`)."""

    GPUCLOUD = "gpucloud", _("gpucloud: where what is typically asked for still fits best afterwards")
    FGD = "fgd", _("FGD: fragmentation gradient descent, as published")
    BINPACK = "binpack", _("Binpack: the fullest GPU that fits")
    SPREAD = "spread", _("Spread: the emptiest GPU")
    TOPOLOGY = "topology", _("Topology: several GPUs close to each other, one where few links are broken")
    GPU_ADMISSION = "gpu-admission", _("gpu-admission: the fullest node that fits, as Tencent's scheduler has it")
    RANDOM = "random", _("Random: any that fits")
    POWER = "power", _("Power: as gpucloud, but GPUs and CPUs in use before idle ones, to draw less power")


class Pool(Row):
    """A named set of nodes; quotas can be given per pool, and all its GPUs share one policy."""

    audited = ("pool", "name")
    name = models.CharField(max_length=63, unique=True, validators=[RegexValidator(SLUG)])
    description = models.CharField(max_length=500, blank=True, default="")
    # With database defaults too: a server of the previous version may still be writing.
    sharing_policy = models.CharField(
        max_length=10, choices=SharingPolicy, default=SharingPolicy.BURST, db_default=SharingPolicy.BURST
    )
    # A GPU follows a change when no claim is on it (`apps.scheduling.services.fleet.back_ends`).
    backend = models.CharField(
        max_length=10, choices=BackEnd, default=BackEnd.TURNS, db_default=BackEnd.TURNS, verbose_name=_("Back end")
    )
    mig = models.CharField(
        max_length=10,
        choices=MigInstances,
        default=MigInstances.ON_DEMAND,
        db_default=MigInstances.ON_DEMAND,
        verbose_name=_("MIG instances"),
    )
    # Of its GPUs with the back end mps; a GPU follows a change as it follows `backend`.
    mps_group = models.CharField(
        max_length=10,
        choices=MpsGroup,
        default=MpsGroup.TENANT,
        db_default=MpsGroup.TENANT,
        verbose_name=_("MPS group"),
    )
    core_ceiling = models.PositiveSmallIntegerField(default=100, db_default=100)
    parts = models.PositiveSmallIntegerField(default=1, db_default=1)
    placement_policy = models.CharField(
        max_length=15, choices=PlacementPolicy, default=PlacementPolicy.GPUCLOUD, db_default=PlacementPolicy.GPUCLOUD
    )
    # Largest sum of the quotas in percent of the GPUs' capacity; null: unlimited.
    core_overcommit_percent = models.PositiveIntegerField(null=True)
    memory_overcommit_percent = models.PositiveIntegerField(null=True)
    audit_policy = models.CharField(
        max_length=10, choices=AuditPolicy, default=AuditPolicy.WARN, db_default=AuditPolicy.WARN
    )
    # A kernel of a best-effort claim that takes longer is told to its owner and to operators; null: none is.
    longest_kernel_ms = models.PositiveIntegerField(null=True)
    rebalance_mode = models.CharField(
        max_length=10, choices=RebalanceMode, default=RebalanceMode.OFF, db_default=RebalanceMode.OFF
    )
    rebalance_policy = models.CharField(
        max_length=10, choices=RebalancePolicy, default=RebalancePolicy.FEEDBACK, db_default=RebalancePolicy.FEEDBACK
    )
    # Values that differ from the defaults of `apps.rebalancing.Bounds`.
    rebalance_bounds = models.JSONField(default=dict, db_default={})
    # Best-effort claims may use reserved capacity until its reservation begins, and are then ended.
    lend_reserved = models.BooleanField(default=False, db_default=False)
    # Best-effort claims may borrow memory that others of their GPU do not use.
    lend_memory = models.BooleanField(default=False, db_default=False)
    # Notice before a claim is preempted; 0: none, null: nothing is preempted.
    preemption_grace_seconds = models.PositiveIntegerField(null=True, default=30, db_default=30)
    # A claim may preempt its own tenant's claims of lower priority.
    preempt_by_priority = models.BooleanField(default=False, db_default=False)
    preempt_by = models.CharField(
        max_length=10, choices=PreemptBy, default=PreemptBy.RELEASE, db_default=PreemptBy.RELEASE
    )
    # A claim that has waited longer goes first at its priority, by age; null: only shares decide.
    patience_seconds = models.PositiveIntegerField(null=True, default=14_400, db_default=14_400)
    fair_share = models.CharField(
        max_length=10, choices=FairShare, default=FairShare.CURRENT, db_default=FairShare.CURRENT
    )
    # With decayed fair share: the time after which past use counts half; as Slurm's PriorityDecayHalfLife, a week.
    half_life_seconds = models.PositiveIntegerField(default=7 * 86_400, db_default=7 * 86_400)
    # Claims that do not fit together share GPUs by time, up to this many times what a GPU has; null: they do not.
    oversubscribe = models.PositiveSmallIntegerField(null=True)
    slice_seconds = models.PositiveIntegerField(default=300, db_default=300)
    # Two claims are put together on a GPU while both keep this percentage of their rates alone; null: they are not.
    pack_keep_percent = models.PositiveSmallIntegerField(null=True)
    # The schedule of its new claims, unless they say another or none; empty: they have none.
    default_schedule = models.CharField(
        max_length=MOST_LETTERS, blank=True, default="", db_default="", validators=[validate_schedule]
    )
    # Tenants may have commands started on its nodes, where the nodes' agents do that (`apps.jobs`).
    jobs = models.BooleanField(default=False, db_default=False)
    # Programs on other machines may use its claims of tenants that may, too (`apps.remote`); and the most that they may
    # move, both ways, for each claim; null: no bound.
    remote = models.BooleanField(default=False, db_default=False)
    remote_mib_per_second = models.PositiveIntegerField(null=True)
    # Reservations with idle claims are released, not only reported.
    reclaim_idle = models.BooleanField(default=False, db_default=False)

    # Foreign changes on its machines are repaired at once; False: on every node only on request.
    repair_drift = models.BooleanField(default=True, db_default=True)
    idle_rule = models.CharField(max_length=10, choices=IdleRule, default=IdleRule.REPORT, db_default=IdleRule.REPORT)
    idle_seconds = models.PositiveIntegerField(default=1800, db_default=1800)
    # Treatment of claims on a node that has been lost for so long.
    failover_policy = models.CharField(
        max_length=10, choices=FailoverPolicy, default=FailoverPolicy.WAIT, db_default=FailoverPolicy.WAIT
    )
    failover_after_seconds = models.PositiveIntegerField(default=300, db_default=300)
    idle_grace_seconds = models.PositiveIntegerField(default=600, db_default=600)
    # Claims without a program for so long are released, whatever the idle rule; null: never.
    unused_seconds = models.PositiveIntegerField(null=True)
    # Time of the last search for idle claims; it changes without a new version.
    idle_looked_at = models.DateTimeField(null=True, editable=False)

    natural_name = natural_name()

    class Meta:
        ordering = ["name"]
        constraints = checks(
            pool_policy_known=Q(sharing_policy__in=SharingPolicy.values),
            pool_backend_known=Q(backend__in=BackEnd.values),
            pool_mig_known=Q(mig__in=MigInstances.values),
            pool_mps_group_known=Q(mps_group__in=MpsGroup.values),
            pool_placement_policy_known=Q(placement_policy__in=PlacementPolicy.values),
            pool_ceiling_in_range=Q(core_ceiling__gte=1, core_ceiling__lte=100),
            pool_failover_policy_known=Q(failover_policy__in=FailoverPolicy.values),
            pool_audit_policy_known=Q(audit_policy__in=AuditPolicy.values),
            pool_idle_rule_known=Q(idle_rule__in=IdleRule.values),
            pool_rebalance_mode_known=Q(rebalance_mode__in=RebalanceMode.values),
            pool_rebalance_policy_known=Q(rebalance_policy__in=RebalancePolicy.values),
            pool_oversubscribe_in_range=Q(oversubscribe__isnull=True)
            | Q(oversubscribe__gte=2, oversubscribe__lte=MOST_OVERSUBSCRIBED),
            pool_slice_in_range=Q(slice_seconds__gte=LEAST_SLICE_SECONDS, slice_seconds__lte=MOST_SLICE_SECONDS),
            pool_pack_keep_in_range=Q(pack_keep_percent__isnull=True)
            | Q(pack_keep_percent__gte=LEAST_KEPT_PERCENT, pack_keep_percent__lte=100),
            pool_preempt_by_known=Q(preempt_by__in=PreemptBy.values),
            pool_fair_share_known=Q(fair_share__in=FairShare.values),
            pool_half_life_in_range=Q(
                half_life_seconds__gte=LEAST_HALF_LIFE_SECONDS, half_life_seconds__lte=MOST_HALF_LIFE_SECONDS
            ),
            pool_parts_in_range=Q(parts__gte=1, parts__lte=MOST_PARTS),
            pool_longest_kernel_in_range=Q(longest_kernel_ms__isnull=True)
            | Q(longest_kernel_ms__gte=1, longest_kernel_ms__lte=MOST_KERNEL_MS),
            pool_remote_rate_in_range=Q(remote_mib_per_second__isnull=True)
            | Q(remote_mib_per_second__gte=1, remote_mib_per_second__lte=MOST_REMOTE_MIB),
        )

    def __str__(self) -> str:
        return self.name
