"""Nodes: machines with an agent."""

import uuid
from datetime import timedelta

from django.core.validators import RegexValidator
from django.db import models
from django.utils import timezone

from apps.quotas.models import Pool
from apps.quotas.models.row import Row
from apps.quotas.models.tenant import SLUG

# Three missed samples at 1 Hz are a hiccup; ten seconds without a sign of life are an absence.
FRESH = timedelta(seconds=10)


def hint_group(node_id: int) -> str:
    """Return the hint group of a node's connection; its name is chosen here, never by a peer."""
    return f"node.{node_id}"


class Node(Row):
    """A machine. `frame` numbers its desired states; it only orders them."""

    uid = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    name = models.CharField(max_length=63, unique=True, validators=[RegexValidator(SLUG)])
    pool = models.ForeignKey(Pool, on_delete=models.PROTECT, related_name="nodes")
    cordoned = models.BooleanField(default=False, help_text="Takes no new claims; those on it stay.")
    # Since when it is being emptied, and how long its claims have after they are told; null: as their pool has it.
    draining_at = models.DateTimeField(null=True)
    drain_grace_seconds = models.PositiveIntegerField(null=True)
    # Why nothing new is placed on any of its GPUs, in a few words; empty: it is well. Follows from its conditions.
    unhealthy = models.CharField(max_length=200, blank=True, default="", db_default="")
    # Since when it takes no new claims because of what ran on it, and why; an operator lifts it.
    fenced_at = models.DateTimeField(null=True)
    fenced_why = models.CharField(max_length=2000, blank=True, default="", db_default="")
    # What its agent told up to here, by the agent's clock, does not fence it again.
    fence_lifted_through_seconds = models.FloatField(default=0.0, db_default=0.0)
    # What claims may ask for by `node_selector`: words of the operators' own.
    labels = models.JSONField(default=dict, db_default={})
    # What somebody changed on it behind the agent's back, as it was last told (`agent.wire.Drift`): at once put right,
    # or, where `repair_drift` says no, once somebody has said so.
    drifts = models.JSONField(default=list, db_default=[])
    repair_drift = models.BooleanField(default=True, db_default=True)
    repair_asked_at = models.DateTimeField(null=True)
    frame = models.PositiveBigIntegerField(default=1)
    observed_frame = models.PositiveBigIntegerField(default=0)
    # One-time enrolment, then the agent's own key: only digests are kept.
    enrolment_digest = models.CharField(max_length=64, null=True, unique=True)
    enrolment_expires_at = models.DateTimeField(null=True)
    key_digest = models.CharField(max_length=64, null=True)
    enrolled_at = models.DateTimeField(null=True)
    last_seen_at = models.DateTimeField(null=True)
    # Told to webhooks as lost, since then.
    lost_at = models.DateTimeField(null=True)
    # What the agent said of itself in its last hello.
    agent_version = models.CharField(max_length=200, blank=True, default="")
    driver_version = models.CharField(max_length=200, blank=True, default="")
    hostname = models.CharField(max_length=200, blank=True, default="")
    run_dir = models.CharField(max_length=2000, blank=True, default="")
    library = models.CharField(max_length=2000, blank=True, default="")
    # Where its agent is a kubelet's device plugin: what its cluster calls the machine; empty elsewhere.
    kubernetes_node = models.CharField(max_length=253, blank=True, default="", db_default="")
    arbiter = models.BooleanField(default=False, db_default=False)
    simulated = models.BooleanField(default=False)
    # Its self-check: {"name", "state", "detail", "cure"} each.
    checks = models.JSONField(default=list, db_default=[])

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name

    @property
    def online(self) -> bool:
        """True while the agent has been heard of lately."""
        return self.last_seen_at is not None and timezone.now() - self.last_seen_at < FRESH

    @property
    def state(self) -> str:
        """One word: `awaiting-agent`, `lost`, `cordoned`, `fenced`, `unhealthy` or `ready`."""
        if self.last_seen_at is None:
            return "awaiting-agent"
        if not self.online:
            return "lost"
        if self.cordoned:
            return "cordoned"
        if self.fenced_at is not None:
            return "fenced"
        return "unhealthy" if self.unhealthy else "ready"
