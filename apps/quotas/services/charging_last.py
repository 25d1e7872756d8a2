"""Charges at the end of a transaction: all quotas together, right before the commit.

A charge locks the rows of its quotas until the end of its transaction, and whoever charges them meanwhile waits. What
does not need these rows (the claim, its audit event, the answer) is therefore written before. Then one statement locks
all quotas and says which are short, and one charges them and writes the ledger. `charging` makes the charges that these
statements do not know: of cohorts, organisations, and members with limits.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django.db import connection
from django.utils import timezone

from apps.quotas.models import ResourceQuota
from apps.quotas.services import charging, member_limits
from apps.quotas.services.charging import ChargeContext

# In key order, as everywhere. It waits for whoever changes a row, and reads what that left.
LOCK = """
SELECT quota.id, quota.hard IS NULL OR quota.used <= quota.hard - wanted.amount
FROM quotas_resourcequota quota
JOIN unnest(%(quotas)s::bigint[], %(amounts)s::bigint[]) AS wanted (id, amount) ON wanted.id = quota.id
ORDER BY quota.id FOR NO KEY UPDATE OF quota
"""
# A statement of its own: one that waited sees other columns, and rows for its UPDATE, as they were when it began. The
# condition is that of `charging` without borrowing.
TAKE_ALL = """
WITH taken AS (
    UPDATE quotas_resourcequota quota
    SET used = quota.used + wanted.amount, borrowed = GREATEST(quota.used + wanted.amount - quota.hard, 0),
        updated_at = %(now)s
    FROM unnest(%(quotas)s::bigint[], %(amounts)s::bigint[]) AS wanted (id, amount)
    WHERE quota.id = wanted.id AND (quota.hard IS NULL OR quota.used <= quota.hard - wanted.amount)
    RETURNING quota.tenant_id, quota.pool_id, quota.resource, quota.used, quota.hard, wanted.amount
)
INSERT INTO quotas_ledgerentry (tenant_id, pool_id, resource, kind, amount, used, hard, claim_uid, actor, at)
SELECT tenant_id, pool_id, resource, 'charge', amount, used, hard, %(claim)s, %(actor)s, %(now)s FROM taken
"""


@dataclass(frozen=True)
class Charge:
    """A charge of quotas that belong to the tenant alone."""

    context: ChargeContext
    quotas: tuple[ResourceQuota, ...]
    amounts: Mapping[str, int]

    def take(self) -> None:
        """Charge every quota, or none. Raises QuotaExceeded for all that are short."""
        if short := self._lock():
            refusals = [
                charging.refusal_of(quota, self.amounts[quota.resource], self.context.principal)
                for quota in self.quotas
                if quota.pk in short
            ]
            raise refusals[0].join(refusals[1:])
        assert self._charge() == len(self.quotas), "the tenant's set of quotas is locked"

    def _lock(self) -> set[int]:
        """Lock all quotas; return the keys of those that are short."""
        with connection.cursor() as cursor:
            cursor.execute(LOCK, self._wanted)
            return {pk for pk, fits in cursor.fetchall() if not fits}

    def _charge(self) -> int:
        """Charge the locked quotas, and write the ledger; return how many."""
        facts: dict[str, Any] = {
            "claim": self.context.claim_uid,
            "actor": self.context.principal.name,
            "now": timezone.now(),
        }
        with connection.cursor() as cursor:
            cursor.execute(TAKE_ALL, {**self._wanted, **facts})
            return int(cursor.rowcount)

    @property
    def _wanted(self) -> dict[str, Any]:
        amounts = [self.amounts[quota.resource] for quota in self.quotas]
        return {"quotas": [quota.pk for quota in self.quotas], "amounts": amounts}


def prepare(context: ChargeContext, *, amounts: Mapping[str, int]) -> Charge | None:
    """Return the charge; None if `charging` must make it.

    Locks the tenant's set of quotas, but none of its quotas.
    """
    wanted = {resource: amount for resource, amount in amounts.items() if amount > 0}
    if member_limits.has_any(context.tenant, context.user_id, wanted):
        return None
    found = charging.own_quotas(context, wanted)
    if found is None or charging.missing_quotas(wanted, found, pool=context.pool):
        return None
    return Charge(context, tuple(found), wanted)
