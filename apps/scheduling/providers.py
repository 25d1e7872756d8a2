"""Interfaces that this app needs from higher apps: it knows the states of suspended claims, not the orders."""

from typing import Protocol

from apps.quotas.principals import Principal
from apps.scheduling.models import Claim
from gpucloud.providers import Provider


class SuspensionOrders(Protocol):
    """Orders to suspend and to resume claims; see `apps.suspension.services`."""

    def suspend_claim(self, *, principal: Principal, claim: Claim, by: str, why: str | None = None) -> Claim:
        """Have the claim's programs leave their GPUs. Raises Conflict if they cannot."""

    def find_obstacle(self, claim: Claim) -> str | None:
        """Return why the claim could not be suspended now; None if nothing seen beforehand forbids it."""

    def resume_claim(self, *, principal: Principal, claim: Claim, by: str) -> Claim:
        """Have a claim that is put aside by this order wait in the queue for GPUs of its node."""


suspension_orders: Provider[SuspensionOrders] = Provider("scheduling.suspension_orders")
