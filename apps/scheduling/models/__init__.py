"""The models of this app, a module per noun."""

from apps.scheduling.models.assignment import Assignment, AssignmentState
from apps.scheduling.models.claim import Claim, ClaimState
from apps.scheduling.models.group import ElasticGroup
from apps.scheduling.models.profile import PackProfile
from apps.scheduling.models.proposal import Proposal, ProposalState
from apps.scheduling.models.reservation import Reservation, ReservationState
from apps.scheduling.models.rotation import RotationMember
from apps.scheduling.models.round import FleetSnapshot, Round
from apps.scheduling.models.usage import AllocatedDay, AllocatedHour, PastUse, PastUseMark, UsedHour

__all__ = [
    "AllocatedDay",
    "AllocatedHour",
    "Assignment",
    "AssignmentState",
    "Claim",
    "ClaimState",
    "ElasticGroup",
    "FleetSnapshot",
    "PackProfile",
    "PastUse",
    "PastUseMark",
    "Proposal",
    "ProposalState",
    "Reservation",
    "ReservationState",
    "RotationMember",
    "Round",
    "UsedHour",
]
