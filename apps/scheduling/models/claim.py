"""Claims: requests for pieces of GPUs, and their state."""

import uuid
from datetime import datetime
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import F, Q

from apps.quotas.models import Pool, Resource, Tenant, User
from apps.quotas.models.resource import MIG
from apps.quotas.models.row import Owned, checks
from apps.scheduling.models.choices import Idle, Isolation, OverQuota, Remote
from apps.scheduling.models.orders import SuspendedBy
from apps.scheduling.models.reservation import Reservation
from apps.scheduling.models.share import Share, borrowable_mib
from gpucloud.fastpath.page_queries import once_per_page
from gpucloud.schedules import MOST_LETTERS
from gpucloud.schedules import validate as validate_schedule
from gpucloud.web.natural_order import natural_key

if TYPE_CHECKING:
    from apps.scheduling.models.assignment import Assignment


class ClaimState(models.TextChoices):
    """States: pending → queued → assigned → active → releasing → released; failed beside them.

    Suspended and back: active → suspending → suspended → resuming → active. A claim that resumes waits in the queue for
    GPUs of its node until it is charged, and then for its programs.

    A ResourceClaim's claim begins as allocating: it is charged, and its cluster's own scheduler decides where it is.
    """

    ALLOCATING = "allocating"
    PENDING = "pending"
    QUEUED = "queued"
    ASSIGNED = "assigned"
    ACTIVE = "active"
    SUSPENDING = "suspending"
    SUSPENDED = "suspended"
    RESUMING = "resuming"
    RELEASING = "releasing"
    RELEASED = "released"
    FAILED = "failed"


MOST_WEIGHT = 1000
# A suspended claim charges host memory only.
CHARGED = Q(charged_vgpus__gt=0) | Q(charged_host_memory_mib__gt=0)
MOST_OF_A_GROUP = 256
WAITING = (ClaimState.PENDING, ClaimState.QUEUED)
# The claims of a queue: those that wait for a first place, and suspended ones that wait for GPUs of their node.
# Claims in another's instance are placed by `apps.instances`.
IN_QUEUE = Q(Q(state__in=WAITING) | Q(state=ClaimState.RESUMING, charged_vgpus=0), instance_of__isnull=True)
WHOLE_OR_INSIDE = Q(core_limit=F("core_request")) | Q(instance_of__isnull=False)
# `kind` of the `pod` of a ResourceClaim's claim.
RESOURCE_CLAIM = "ResourceClaim"
# From its suspension until its programs have their GPU memory back.
PUT_ASIDE = (ClaimState.SUSPENDING, ClaimState.SUSPENDED, ClaimState.RESUMING)
PLACED = (ClaimState.ASSIGNED, ClaimState.ACTIVE, ClaimState.FAILED)
MEMORY_OUT = "{} GiB are in host memory, because others of its GPUs use theirs: its programs go on, slower."


class ClaimQuerySet(Owned["Claim"]):
    """Claims, selected by the principal who asks."""

    def live(self) -> "ClaimQuerySet":
        """Return the claims that hold or wait for something."""
        return self.exclude(state=ClaimState.RELEASED)

    def in_queue(self) -> "ClaimQuerySet":
        """Return the claims that a round may place."""
        return self.filter(IN_QUEUE)


class Claim(Share):
    """One request for pieces of GPUs. `charged_*` is what its tenant's quotas are charged for it at this moment."""

    audited = ("claim", "uid")
    uid = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="claims")
    pool = models.ForeignKey(Pool, on_delete=models.PROTECT, related_name="claims")
    name = models.CharField(max_length=200)
    core_limit = models.PositiveSmallIntegerField()
    weight = models.PositiveSmallIntegerField(default=1, db_default=1)
    best_effort = models.BooleanField(default=False, db_default=False)
    # False: the rebalancer leaves it alone.
    rebalance = models.BooleanField(default=True, db_default=True)
    # True: its owner allows moves to other nodes.
    movable = models.BooleanField(default=False, db_default=False)
    # The limit that its owner set, if the rebalancer has set another one.
    asked_core_limit = models.PositiveSmallIntegerField(null=True)
    # On each of its GPUs, of a best-effort claim: what its programs may allocate beyond `memory_mib`, which is promised
    # to it. The difference is memory that others of the GPU do not use now; it leaves when they need it. Null: nothing.
    memory_limit_mib = models.PositiveBigIntegerField(null=True)
    # On each of its GPUs: the part of its guarantee that best-effort claims may use; and the lent core that it uses.
    lent_core = models.PositiveSmallIntegerField(default=0, db_default=0)
    borrowed_core = models.PositiveSmallIntegerField(default=0, db_default=0)
    rebalanced_at = models.DateTimeField(null=True)
    isolation = models.CharField(max_length=6, choices=Isolation, default=Isolation.SHARED, db_default=Isolation.SHARED)
    # Of a claim with hard isolation: the MIG profile of its instance, whose core and memory it has.
    profile = models.CharField(max_length=40, null=True)
    # Of a claim that opens its instance: the part that its own programs have; the rest is for claims that name it.
    own_core = models.PositiveSmallIntegerField(null=True)
    own_memory_mib = models.PositiveBigIntegerField(null=True)
    # The uid of the claim in whose instance it runs. That claim is charged for the instance, and this one for nothing.
    instance_of = models.UUIDField(null=True)
    remote = models.CharField(max_length=7, choices=Remote, default=Remote.ALLOW, db_default=Remote.ALLOW)
    # Labels among the tenant's own claims: on one GPU, on different ones, on GPUs without others.
    affinity = models.CharField(max_length=63, null=True)
    anti_affinity = models.CharField(max_length=63, null=True)
    exclusion = models.CharField(max_length=63, null=True)
    node_selector = models.JSONField(default=dict, db_default={})
    priority = models.SmallIntegerField(default=0)
    time_limit_seconds = models.PositiveIntegerField(null=True)
    # Outside of this weekly window it is suspended (`gpucloud.schedules`); empty: it has none. The time at which it
    # will be, known to its holder a while before.
    schedule = models.CharField(
        max_length=MOST_LETTERS, blank=True, default="", db_default="", validators=[validate_schedule]
    )
    suspends_at = models.DateTimeField(null=True)
    # It is not placed before this.
    start_at = models.DateTimeField(null=True)
    # Claims of one tenant with one `group` and `group_size` are placed together, that many at once.
    group = models.CharField(max_length=63, null=True)
    group_size = models.PositiveSmallIntegerField(null=True)
    # Of an elastic group: the most members, and the uid of its first claim, with which it ends. The group runs with
    # `group_size` of that claim at least; a member that joins a running group is placed alone (`group_size` 1).
    group_most = models.PositiveSmallIntegerField(null=True)
    group_uid = models.UUIDField(null=True)
    # With a lease the claim ends by itself at `lease_until` unless its holder renews it, placed or waiting.
    lease_seconds = models.PositiveIntegerField(null=True)
    lease_until = models.DateTimeField(null=True)
    # The reservation in which it runs, and with which it ends.
    reservation = models.ForeignKey(
        Reservation, on_delete=models.PROTECT, related_name="claims", null=True, db_index=False
    )
    # The time at which a borrower of reserved room must be gone, known to its holder a while before.
    yields_at = models.DateTimeField(null=True)
    # The time of its preemption; in `releasing`: it is being preempted, and comes back to the queue.
    preempt_at = models.DateTimeField(null=True)
    # The nominee for whom it is preempted; and a nominee's own: the GPUs that are withheld from all others meanwhile.
    preempted_for = models.ForeignKey("self", on_delete=models.SET_NULL, null=True, related_name="+", db_index=False)
    nominated_gpus = ArrayField(models.CharField(max_length=80), null=True)
    # The container of a cluster that it is for (`agent.wire.Pod`): the node's agent knows it by these names. Or the
    # ResourceClaim: `kind`, its names and uid, and by GPU what was allocated of it (`agent.wire.ResourceClaim`).
    pod = models.JSONField(null=True)
    # The time since when, at least, it is idle; why it counts as idle (`Idle`); and when it is released for that.
    idle_since = models.DateTimeField(null=True)
    idle_reason = models.CharField(max_length=10, choices=Idle, null=True)
    idle_release_at = models.DateTimeField(null=True)
    # The time since when, at least, it gets less core than its request although it wants more; and the measurements.
    below_guarantee_since = models.DateTimeField(null=True)
    below_guarantee = models.CharField(max_length=500, blank=True, default="", db_default="")
    when_over_quota = models.CharField(max_length=10, choices=OverQuota, default=OverQuota.REFUSE)
    state = models.CharField(max_length=12, choices=ClaimState, default=ClaimState.PENDING)
    suspended_by = models.CharField(max_length=10, choices=SuspendedBy, blank=True, default="", db_default="")
    reasons = models.JSONField(default=list)
    generation = models.PositiveIntegerField(default=1)
    created_by = models.CharField(max_length=200)
    # The member to whose limit it counts: the user who made it, or whose token did.
    user = models.ForeignKey(User, on_delete=models.SET_NULL, null=True, related_name="+", db_index=False)
    assigned_at = models.DateTimeField(null=True)
    released_at = models.DateTimeField(null=True)
    # Times of its states, oldest first: [["pending", "2026-…"], …]
    timeline = ArrayField(ArrayField(models.CharField(max_length=40), size=2), default=list)

    # Of instances of its profile.
    charged_instances = models.PositiveSmallIntegerField(default=0, db_default=0)

    objects = ClaimQuerySet.as_manager()

    class Meta:
        ordering = ["-pk"]
        indexes = [
            models.Index(
                fields=["pool", "-priority", "id"], name="claim_queue", condition=Q(state__in=["pending", "queued"])
            ),
            models.Index(fields=["pool", "id"], name="claim_resuming", condition=Q(state="resuming")),
            models.Index(fields=["tenant", "-id"], name="claim_of_tenant"),
            models.Index(fields=["pool", "-id"], name="claim_of_pool"),
            models.Index(fields=["name", "-id"], name="claim_by_name"),
            models.Index(natural_key("name"), "id", name="claim_natural", condition=~Q(state="released")),
            # Few claims of a long history are alive.
            models.Index(fields=["state", "-id"], name="claim_alive", condition=~Q(state="released")),
            models.Index(fields=["tenant", "state", "-id"], name="claim_tenant_alive", condition=~Q(state="released")),
            models.Index(fields=["updated_at"], name="claim_by_change"),
            # Claims with labels: few, and read whenever GPUs are read.
            models.Index(
                fields=["pool"],
                name="claim_labelled",
                condition=(Q(affinity__isnull=False) | Q(anti_affinity__isnull=False) | Q(exclusion__isnull=False))
                & ~Q(state="released"),
            ),
            models.Index(fields=["user", "tenant"], name="claim_of_user", condition=CHARGED),
            # Recent releases of a pool: the rate at which the queue moves.
            models.Index(
                fields=["pool", "-released_at"],
                name="claim_given_back",
                condition=Q(state="released", assigned_at__isnull=False),
            ),
            # Holdings within a period: everything that was not released before it.
            models.Index(fields=["tenant", "released_at"], name="claim_held"),
            models.Index(fields=["reservation"], name="claim_in", condition=Q(reservation__isnull=False)),
            models.Index(fields=["group_uid"], name="claim_in_group", condition=Q(group_uid__isnull=False)),
            models.Index(
                fields=["instance_of"],
                name="claim_in_instance",
                condition=Q(instance_of__isnull=False) & ~Q(state="released"),
            ),
            models.Index(fields=["preempted_for"], name="claim_preempted", condition=Q(preempt_at__isnull=False)),
            models.Index(fields=["pool"], name="claim_idle", condition=Q(idle_since__isnull=False)),
            models.Index(fields=["pool"], name="claim_below", condition=Q(below_guarantee_since__isnull=False)),
            models.Index(fields=["pool"], name="claim_nominated", condition=Q(nominated_gpus__isnull=False)),
            models.Index(fields=["id"], name="claim_scheduled", condition=~Q(schedule="") & ~Q(state="released")),
            models.Index(fields=["yields_at"], name="claim_yields", condition=Q(yields_at__isnull=False)),
            models.Index(
                fields=["lease_until"],
                name="claim_lease",
                condition=Q(lease_until__isnull=False) & ~Q(state__in=["releasing", "released"]),
            ),
        ]
        constraints = checks(
            claim_state_known=Q(state__in=ClaimState.values),
            claim_suspended_by_known=(Q(suspended_by="") | Q(suspended_by__in=SuspendedBy.values, state__in=PUT_ASIDE)),
            claim_idle_whole=(
                Q(idle_since__isnull=True, idle_reason__isnull=True, idle_release_at__isnull=True)
                | Q(idle_since__isnull=False, idle_reason__isnull=False)
            ),
            claim_remote_known=Q(remote__in=Remote.values),
            claim_gpu_count_positive=Q(gpu_count__gte=1),
            claim_core_in_range=Q(core_limit__gte=F("core_request"), core_limit__lte=100),
            claim_weight_in_range=Q(weight__gte=1, weight__lte=MOST_WEIGHT),
            claim_memory_positive=Q(memory_mib__gte=1),
            claim_memory_limit_whole=(
                Q(memory_limit_mib__isnull=True)
                | Q(memory_limit_mib__gt=F("memory_mib"), best_effort=True, isolation="shared")
            ),
            claim_isolation_whole=(
                Q(isolation="shared", profile__isnull=True, own_core__isnull=True, instance_of__isnull=True)
                | Q(WHOLE_OR_INSIDE, isolation="hard", profile__isnull=False, gpu_count=1)
            ),
            claim_own_part_whole=(
                Q(own_core__isnull=True, own_memory_mib__isnull=True)
                | Q(
                    instance_of__isnull=True,
                    own_core__lte=F("core_request"),
                    own_memory_mib__gte=1,
                    own_memory_mib__lte=F("memory_mib"),
                )
            ),
            claim_lease_whole=(
                Q(lease_seconds__isnull=True, lease_until__isnull=True)
                | Q(lease_seconds__gte=1, lease_until__isnull=False)
            ),
            claim_group_whole=(
                Q(group__isnull=True, group_size__isnull=True)
                | Q(group__isnull=False, group_most__isnull=True, group_size__gte=2, group_size__lte=MOST_OF_A_GROUP)
                | Q(group__isnull=False, group_most__isnull=False, group_size__gte=1, group_size__lte=F("group_most"))
            ),
            claim_elastic_whole=(
                Q(group_most__isnull=True, group_uid__isnull=True)
                | Q(group_most__gte=2, group_most__lte=MOST_OF_A_GROUP, group_uid__isnull=False, group__isnull=False)
            ),
            claim_released_charges_nothing=(
                ~Q(state="released")
                | Q(
                    charged_core_percent=0,
                    charged_memory_mib=0,
                    charged_vgpus=0,
                    charged_gpus=0,
                    charged_host_memory_mib=0,
                    charged_instances=0,
                )
            ),
        )

    def __str__(self) -> str:
        return f"{self.tenant}/{self.name}"

    @property
    def begins_group(self) -> bool:
        """True if it is the first claim of an elastic group, which ends with it."""
        return self.group_uid == self.uid

    @property
    def has_fixed_size(self) -> bool:
        """True if it has a MIG instance, whose size it keeps."""
        return self.profile is not None and self.instance_of is None

    @property
    def ends_with_its_pod(self) -> bool:
        """True if its cluster decides where it is, and ends it by ending its pod or ResourceClaim.

        A SharePod's claim names its pod too, but not by a uid: it exists before the pod.
        """
        return self.pod is not None and "uid" in self.pod

    @property
    def is_of_resource_claim(self) -> bool:
        """True if it is for a ResourceClaim, which its cluster's own scheduler places."""
        return self.pod is not None and self.pod.get("kind") == RESOURCE_CLAIM

    @property
    def used_by(self) -> str:
        """The pod with its container, or the ResourceClaim, that it is for; empty: none."""
        facts = self.pod or {}
        names = f"{facts.get('kind', 'Pod')} {facts.get('namespace', '')}/{facts.get('name', '')}"
        return f"{names}, container {facts['container']}" if "container" in facts else names if facts else ""

    @once_per_page
    def present_assignments(self) -> list["Assignment"]:
        """Return the assignments of the claim; after a preemption, those made since."""
        rows = vars(self).get("_prefetched_objects_cache", {}).get("assignments") or self.assignments.all()
        rows = getattr(rows, "_result_cache", None) or list(rows)
        return [row for row in rows if row.state != "released"] or ([] if self.waiting else list(rows))

    @once_per_page
    def unreachable_since(self) -> datetime | None:
        """Return the last heartbeat of its lost node; None if its node is heard, or it has none."""
        rows = [row for row in self.present_assignments if row.state != "released" and row.counterpart_id is None]
        return next((row.gpu.node.last_seen_at for row in rows if not row.gpu.node.online), None)

    @property
    def conditions(self) -> list[dict[str, Any]]:
        """The problems that it has now: type, beginning and detail of each."""
        present = [row for row in self.present_assignments if row.state != "released"]
        out = [row.memory_out_since for row in present if row.memory_out_since]
        gib = sum(row.memory_out_mib or 0 for row in present) / 1024
        found = [
            ("unreachable", self.unreachable_since, "Its node is lost, so its state is unknown."),
            ("below-guarantee", self.below_guarantee_since, self.below_guarantee),
            ("idle", self.idle_since, f"Reason: {self.idle_reason}."),
            ("memory-out", min(out, default=None), MEMORY_OUT.format(f"{gib:.3g}")),
        ]
        return [{"type": kind, "since": since, "detail": detail} for kind, since, detail in found if since is not None]

    @property
    def shown_state(self) -> str:
        """Its state for pages: `unknown` while its node is lost."""
        return "unknown" if self.unreachable_since is not None else self.state

    @property
    def waiting_since(self) -> datetime | None:
        """The beginning of its present wait, not before its `start_at`; None if it does not wait."""
        if not self.waiting:
            return None
        waits = takewhile(lambda entry: entry[0] in (*WAITING, ClaimState.RESUMING), reversed(self.timeline))
        begin = min((datetime.fromisoformat(at) for _, at in waits), default=self.created_at)
        return max(begin, self.start_at) if self.start_at else begin

    @property
    def waiting(self) -> bool:
        """True before a round has placed it, and while it waits for GPUs of its node to resume there."""
        return self.state in WAITING or self.waits_to_resume

    @property
    def waits_to_resume(self) -> bool:
        """True if it is suspended and waits in the queue for GPUs of its node."""
        return self.state == ClaimState.RESUMING and self.charged_vgpus == 0

    @property
    def moves_to(self) -> str | None:
        """The name of the node to which it moves; None if it does not move to another node."""
        return next((row.gpu.node.name for row in self.present_assignments if row.is_target), None)

    @property
    def moves_by(self) -> str | None:
        """Its way to another node: `carry`, its programs go on there, or `restart`; None if it does not move."""
        targets = [row for row in self.present_assignments if row.is_target]
        return None if not targets else "restart" if targets[0].carry is None else "carry"

    @property
    def host_memory_mib(self) -> int:
        """The memory of its node that it is charged, for its suspension or for what it borrows."""
        return self.charged_host_memory_mib

    @property
    def allocatable_mib(self) -> int:
        """The memory of each GPU that its programs may allocate, promised and borrowed."""
        return self.memory_limit_mib or self.memory_mib

    @property
    def amounts(self) -> dict[str, int]:
        """The amounts that it charges once it is placed: what it has in host memory stays charged until it runs."""
        host_mib = max(self.charged_host_memory_mib, self.gpu_count * borrowable_mib(self))
        return {**super().amounts, Resource.HOST_MEMORY_MIB: host_mib, **self.instances(1)}

    @property
    def charged(self) -> dict[str, int]:
        """The amounts that the tenant's quotas are charged for it, by resource."""
        return super().charged | self.instances(self.charged_instances)

    def instances(self, number: int) -> dict[str, int]:
        """Return this number of instances of its profile as an amount; empty if it has no instance of its own."""
        return {f"{MIG}{self.profile}": number} if self.has_fixed_size else {}
