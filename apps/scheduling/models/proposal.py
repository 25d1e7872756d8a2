"""Proposals: changes that the rebalancer proposes, or has applied, and their reasons."""

import uuid

from django.db import models
from django.db.models import Q

from apps.quotas.models import Pool
from apps.quotas.models.row import Owned, Row, checks
from apps.scheduling.models.claim import Claim


class ProposalKind(models.TextChoices):
    """Kinds of changes; see `apps.rebalancing.values.Kind`."""

    LEND = "lend", "Lend: best-effort claims may use a part of the guarantee while it is idle"
    GIVE_BACK = "give-back", "Give back: what was lent is its owner's again"
    LIMIT = "limit", "Limit: another core_limit"
    RESIZE = "resize", "Resize: another core_request or memory_mib"
    PACK = "pack", "Pack: move to the GPU of another claim"
    UNPACK = "unpack", "Unpack: move to a GPU of its own"
    REQUEUE = "requeue", "Requeue: release the MIG instance and be placed again"


# Proposals of `apps.packing`: they change GPUs, by a move.
MOVES = frozenset({ProposalKind.PACK, ProposalKind.UNPACK})


class ProposalState(models.TextChoices):
    """States: proposed → applied | dismissed | expired | failed."""

    PROPOSED = "proposed"
    APPLIED = "applied"
    DISMISSED = "dismissed"
    EXPIRED = "expired"
    FAILED = "failed"


class ProposalQuerySet(Owned["Proposal"]):
    """Proposals, selected by the principal who asks."""

    owner = "claim__tenant"


class Proposal(Row):
    """One change of one claim, from these values to those. `before` and `after` name the claim's own fields."""

    audited = ("proposal", "uid")
    uid = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)
    pool = models.ForeignKey(Pool, on_delete=models.PROTECT, related_name="+")
    claim = models.ForeignKey(Claim, on_delete=models.PROTECT, related_name="proposals")
    kind = models.CharField(max_length=10, choices=ProposalKind)
    policy = models.CharField(max_length=20)
    before = models.JSONField()
    after = models.JSONField()
    explanation = models.CharField(max_length=2000)
    numbers = models.JSONField(default=dict)
    state = models.CharField(max_length=10, choices=ProposalState, default=ProposalState.PROPOSED)
    # The reason if it failed or is no longer proposed; and who decided.
    words = models.CharField(max_length=2000, blank=True, default="")
    decided_by = models.CharField(max_length=200, null=True)
    decided_at = models.DateTimeField(null=True)

    objects = ProposalQuerySet.as_manager()

    class Meta:
        ordering = ["-pk"]
        constraints = [
            *checks(
                proposal_state_known=Q(state__in=ProposalState.values),
                proposal_kind_known=Q(kind__in=ProposalKind.values),
                proposal_decided_or_not=Q(state="proposed", decided_at=None)
                | (~Q(state="proposed") & ~Q(decided_at=None)),
            ),
            models.UniqueConstraint(fields=["claim"], condition=Q(state="proposed"), name="proposal_one_a_claim"),
        ]
        indexes = [
            models.Index(fields=["pool", "-id"], name="proposal_of_pool"),
            models.Index(fields=["updated_at"], name="proposal_by_change"),
        ]

    def __str__(self) -> str:
        return f"{self.kind} of {self.claim}"
