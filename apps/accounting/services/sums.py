"""Quotas as numbers: charged as `charging` does it, on the rows as they were read. Nothing is locked or written."""

from collections import Counter
from collections.abc import Iterable

from apps.quotas.models import CohortShare, OrganisationQuota, ResourceQuota
from apps.quotas.services.organisation_quotas import levels_above
from apps.scheduling.models import Claim
from apps.scheduling.services.charging.shortages import MemberHoldings, find_shortages

# The amounts used of each quota, taken of each share, and held by the members looked up.
Saved = tuple[
    list[tuple[ResourceQuota | OrganisationQuota, int]],
    list[tuple[CohortShare, int]],
    dict[tuple[int, int | None], dict[str, int]],
]


class Sums:
    """Some tenants' quotas, filled up claim by claim."""

    def __init__(self, quotas: Iterable[ResourceQuota]) -> None:
        """Take all quotas of each tenant that is charged here, in key order, with their pools and shares."""
        self.quotas = list(quotas)
        self._members = MemberHoldings()
        # Of the organisations above; tenants of one have the same rows.
        self._levels = levels_above({quota.tenant_id: quota.tenant for quota in self.quotas}.values())
        # Quotas of one share must see one another's charges.
        shares: dict[int, CohortShare] = {}
        for quota in self.quotas:
            if quota.share is not None:
                quota.share = shares.setdefault(quota.share.pk, quota.share)

    def charge(self, claim: Claim) -> None:
        """Charge everything that the claim takes, or nothing. Raises QuotaExceeded."""
        # A claim that waits to resume is charged its host memory already.
        due = {resource: amount - claim.charged[resource] for resource, amount in claim.amounts.items()}
        wanted = {resource: amount for resource, amount in due.items() if amount}
        limits, held = self._members.of(claim)
        quotas = [quota for quota in self.quotas if _covers(quota, claim) and quota.resource in wanted]
        levels = [row for row in self._levels.get(claim.tenant_id, ()) if row.covers(claim.pool_id)]
        if short := find_shortages(claim, quotas, limits=limits, held=held, levels=levels):
            raise short[0].join(short[1:])
        for row in levels:
            row.used += wanted.get(row.resource, 0)
        for quota in quotas:
            more = quota.taken(quota.used + wanted[quota.resource]) - quota.taken()
            quota.used += wanted[quota.resource]
            if quota.share is not None:
                quota.share.taken += more
        for resource in limits.keys() & wanted.keys():
            held[resource] += wanted[resource]

    def save(self) -> Saved:
        """Return the present numbers, for `undo`."""
        shares = {quota.share.pk: quota.share for quota in self.quotas if quota.share is not None}
        levels = {row.pk: row for rows in self._levels.values() for row in rows}
        rows: list[ResourceQuota | OrganisationQuota] = [*self.quotas, *levels.values()]
        return (
            [(row, row.used) for row in rows],
            [(share, share.taken) for share in shares.values()],
            {key: dict(held) for key, (_, held) in self._members.known.items()},
        )

    def undo(self, kept: Saved) -> None:
        """Restore the numbers."""
        quotas, shares, members = kept
        for quota, used in quotas:
            quota.used = used
        for share, taken in shares:
            share.taken = taken
        # Members looked up since then are dropped, and read anew.
        known = self._members.known
        self._members.known = {key: (known[key][0], Counter(held)) for key, held in members.items()}


def _covers(quota: ResourceQuota, claim: Claim) -> bool:
    return quota.tenant_id == claim.tenant_id and quota.pool_id in (None, claim.pool_id)
