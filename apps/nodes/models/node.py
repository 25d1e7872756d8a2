"""Nodes: machines with an agent."""

import uuid
from datetime import timedelta

from django.core.validators import RegexValidator
from django.db import models
from django.db.models import Case, Q, Value, When
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from apps.quotas.models import Pool
from apps.quotas.models.row import Row
from apps.quotas.models.tenant import SLUG
from gpucloud.web.natural_order import natural_name

# Three missed samples at 1 Hz are a hiccup; ten seconds without a frame mean that the agent is lost.
FRESH = timedelta(seconds=10)


def hint_group(node_id: int) -> str:
    """Return the hint group of a node's connection; its name is chosen here, never by a peer."""
    return f"node.{node_id}"


# States of a node, the worst first.
STATES = ("lost", "fenced", "unhealthy", "returning", "awaiting-agent", "draining", "cordoned", "ready")


def state_now() -> Case:
    """Return the expression of `Node.state` at this moment, for the database."""
    return Case(
        When(last_seen_at=None, then=Value("awaiting-agent")),
        When(last_seen_at__lte=timezone.now() - FRESH, then=Value("lost")),
        When(draining_at__isnull=False, then=Value("draining")),
        When(cordoned=True, then=Value("cordoned")),
        When(fenced_at__isnull=False, then=Value("fenced")),
        When(returning_frame__isnull=False, then=Value("returning")),
        When(~Q(unhealthy=""), then=Value("unhealthy")),
        default=Value("ready"),
        output_field=models.CharField(),
    )


class DrainMode(models.TextChoices):
    """Treatment of the claims on a node that is drained."""

    REQUEUE = "requeue", _("Requeue: they end, and return to the queue")
    SUSPEND = "suspend", _("Suspend: they stop until the node is uncordoned; requeued where that fails")
    MOVE = "move", _("Move: movable ones go to other nodes, carried if they can be; the others are suspended")


class Node(Row):
    """A machine with an agent. `frame` numbers its desired states; it only orders them."""

    audited = ("node", "name")
    uid = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    name = models.CharField(max_length=63, unique=True, validators=[RegexValidator(SLUG)])
    pool = models.ForeignKey(Pool, on_delete=models.PROTECT, related_name="nodes")
    cordoned = models.BooleanField(default=False, help_text="Takes no new claims; those on it stay.")
    # Start of its drain, and the grace of its claims after their notice; null: the pool's.
    draining_at = models.DateTimeField(null=True)
    drain_grace_seconds = models.PositiveIntegerField(null=True)
    drain_mode = models.CharField(
        max_length=10, choices=DrainMode, default=DrainMode.REQUEUE, db_default=DrainMode.REQUEUE
    )
    # Reason why nothing new is placed on any of its GPUs; empty: healthy. Follows from its conditions.
    unhealthy = models.CharField(max_length=200, blank=True, default="", db_default="")
    # Start and reason of a fence: it accepts no new claims because of a process; an operator lifts it.
    fenced_at = models.DateTimeField(null=True)
    fenced_why = models.CharField(max_length=2000, blank=True, default="", db_default="")
    # Reports up to this time (by the agent's clock) do not fence it again.
    fence_lifted_through_seconds = models.FloatField(default=0.0, db_default=0.0)
    # Labels for the claims' `node_selector`, chosen by operators.
    labels = models.JSONField(default=dict, db_default={})
    # Foreign changes on the machine as last reported (`agent.wire.Drift`): repaired at once,
    # or on request if `repair_drift` is False.
    drifts = models.JSONField(default=list, db_default=[])
    repair_drift = models.BooleanField(default=True, db_default=True)
    repair_asked_at = models.DateTimeField(null=True)
    frame = models.PositiveBigIntegerField(default=1)
    observed_frame = models.PositiveBigIntegerField(default=0)
    # One-time enrolment, then the agent's own key: only digests are stored.
    enrolment_digest = models.CharField(max_length=64, null=True, unique=True)
    enrolment_expires_at = models.DateTimeField(null=True)
    key_digest = models.CharField(max_length=64, null=True)
    enrolled_at = models.DateTimeField(null=True)
    last_seen_at = models.DateTimeField(null=True)
    # Time when webhooks were told that it is lost.
    lost_at = models.DateTimeField(null=True)
    # The desired state without the claims that were moved away while it was lost: it takes no new claims until its
    # agent has ended their programs.
    returning_frame = models.PositiveBigIntegerField(null=True)
    # Facts from the agent's last hello.
    agent_version = models.CharField(max_length=200, blank=True, default="")
    driver_version = models.CharField(max_length=200, blank=True, default="")
    hostname = models.CharField(max_length=200, blank=True, default="")
    run_dir = models.CharField(max_length=2000, blank=True, default="")
    library = models.CharField(max_length=2000, blank=True, default="")
    # Name of the machine in its cluster if the agent is a kubelet's device plugin; else empty.
    kubernetes_node = models.CharField(max_length=253, blank=True, default="", db_default="")
    # True if the agent is the node's driver for Dynamic Resource Allocation.
    dra = models.BooleanField(default=False, db_default=False)
    arbiter = models.BooleanField(default=False, db_default=False)
    # The back ends that its agent can serve beside turns.
    backends = models.JSONField(default=list, db_default=[])
    # True if its driver can suspend processes; and its memory that suspended claims may take together, and do take.
    can_suspend = models.BooleanField(default=False, db_default=False)
    # True if suspended claims may resume on other GPUs of the node, of the same model.
    can_move = models.BooleanField(default=False, db_default=False)
    # True if its agent lets a claim's programs save their state and end, for a move to another node.
    can_restart = models.BooleanField(default=False, db_default=False)
    # True if its agent can send and take running programs, for a move to another node.
    can_carry = models.BooleanField(default=False, db_default=False)
    # True if its agent can start the programs of jobs.
    jobs = models.BooleanField(default=False, db_default=False)
    # True if it can start them in containers, too.
    images = models.BooleanField(default=False, db_default=False)
    # True: its agent can run several claims in one MIG instance.
    shared_instances = models.BooleanField(default=False, db_default=False)
    # The address at which clients reach it for remote shares (`agent.wire.RemoteEndpoint`); null: they do not.
    remote = models.JSONField(null=True)
    # True: its agent and its arbiter can lend memory to best-effort claims.
    lends_memory = models.BooleanField(default=False, db_default=False)
    host_memory_mib = models.PositiveBigIntegerField(default=0, db_default=0)
    host_memory_used_mib = models.PositiveBigIntegerField(default=0, db_default=0)
    simulated = models.BooleanField(default=False)
    # Results of its self-check: {"name", "state", "detail", "cure"} each.
    checks = models.JSONField(default=list, db_default=[])

    natural_name = natural_name()
    # Progress of its drain, on pages that have read it: `3/5` claims have left.
    drain_progress: object = None

    class Meta:
        ordering = ["name"]
        indexes = [models.Index(fields=["natural_name"], name="node_by_natural_name")]

    def __str__(self) -> str:
        return self.name

    @property
    def online(self) -> bool:
        """True if the agent sent a frame within FRESH."""
        return self.last_seen_at is not None and timezone.now() - self.last_seen_at < FRESH

    @property
    def state(self) -> str:
        """State of the node at this moment, one of STATES; `state_now` returns the same from the database."""
        if self.last_seen_at is None:
            return "awaiting-agent"
        if not self.online:
            return "lost"
        if self.draining_at is not None:
            return "draining"
        if self.cordoned:
            return "cordoned"
        if self.fenced_at is not None:
            return "fenced"
        if self.returning_frame is not None:
            return "returning"
        return "unhealthy" if self.unhealthy else "ready"
