"""The comparison of ledger, claims and used amounts, to the unit; and of nodes' memory with suspended claims.

Claims and active reservations hold GPUs, so their charges are what the other numbers should be. Every statement below
reads one moment of the database: a change and its ledger entries are one transaction, so a platform at work never
differs.
"""

from dataclasses import dataclass

from django.db import connection, transaction

from apps.quotas.models import Resource
from apps.quotas.models.resource import MIG
from apps.quotas.principals import Principal
from apps.quotas.services import repair

CHARGED = " UNION ALL ".join(
    f"""
    SELECT holder.tenant_id, holder.pool_id, holder.uid, charge.resource, charge.amount
    FROM {table} holder
    CROSS JOIN LATERAL (VALUES {", ".join(f"('{name}', holder.charged_{name})" for name in Resource.values)})
        AS charge (resource, amount)
    WHERE charge.amount > 0
    """  # noqa: S608 - the names are the enumeration's
    for table in ("scheduling_claim", "scheduling_reservation")
)
CHARGED += f"""
    UNION ALL SELECT tenant_id, pool_id, uid, '{MIG}' || profile, charged_instances FROM scheduling_claim
    WHERE charged_instances > 0
"""  # noqa: S608 - likewise
QUOTA = "tenant.slug || '/' || COALESCE(pool.name, '*') || '/' || quota.resource"
NAMED = """
    FROM quotas_resourcequota quota
    JOIN quotas_tenant tenant ON tenant.id = quota.tenant_id
    LEFT JOIN quotas_pool pool ON pool.id = quota.pool_id
"""

# Per quota: `used`, the sum of its entries, and the sum of its claims.
OF_QUOTAS = f"""
WITH charged AS ({CHARGED}),
entered AS (
    SELECT tenant_id, pool_id, resource, SUM(amount) AS amount FROM quotas_ledgerentry
    GROUP BY tenant_id, pool_id, resource
),
story AS (
    SELECT quota.id, {QUOTA} AS name, quota.used, quota.hard, quota.borrowed,
        COALESCE((SELECT entered.amount FROM entered WHERE entered.tenant_id = quota.tenant_id
            AND entered.pool_id IS NOT DISTINCT FROM quota.pool_id AND entered.resource = quota.resource), 0) AS ledger,
        COALESCE((SELECT SUM(charged.amount) FROM charged WHERE charged.tenant_id = quota.tenant_id
            AND (quota.pool_id IS NULL OR charged.pool_id = quota.pool_id)
            AND charged.resource = quota.resource), 0) AS claims
    {NAMED}
)
SELECT id, name, number, is_now, should_be FROM story CROSS JOIN LATERAL (VALUES
    ('used', story.used, story.claims),
    ('ledger', story.ledger, story.claims),
    ('borrowed', story.borrowed, GREATEST(story.claims - story.hard, 0))
) AS told (number, is_now, should_be)
WHERE is_now <> should_be ORDER BY id, number
"""  # noqa: S608 - nothing in it comes from outside

# Per quota and claim: the sum of the claim's entries, and the claim's charge.
OF_CLAIMS = f"""
WITH charged AS ({CHARGED}),
covered AS (
    SELECT quota.id, charged.uid, charged.amount FROM quotas_resourcequota quota JOIN charged
        ON charged.tenant_id = quota.tenant_id AND charged.resource = quota.resource
        AND (quota.pool_id IS NULL OR charged.pool_id = quota.pool_id)
),
entered AS (
    SELECT quota.id, entry.claim_uid AS uid, SUM(entry.amount) AS amount
    FROM quotas_resourcequota quota JOIN quotas_ledgerentry entry
        ON entry.tenant_id = quota.tenant_id AND entry.resource = quota.resource
        AND entry.pool_id IS NOT DISTINCT FROM quota.pool_id
    WHERE entry.claim_uid IS NOT NULL GROUP BY quota.id, entry.claim_uid
)
SELECT quota.id, {QUOTA}, 'ledger of claim ' || uid, COALESCE(entered.amount, 0), COALESCE(covered.amount, 0)
FROM covered FULL JOIN entered USING (id, uid) JOIN quotas_resourcequota quota USING (id)
    JOIN quotas_tenant tenant ON tenant.id = quota.tenant_id LEFT JOIN quotas_pool pool ON pool.id = quota.pool_id
WHERE COALESCE(entered.amount, 0) <> COALESCE(covered.amount, 0) ORDER BY quota.id, uid
"""  # noqa: S608 - likewise

# Per share: its own numbers, and the sums of its quotas.
OF_SHARES = """
WITH told AS (
    SELECT share_id, LEAST(hard, COALESCE(lending_limit, hard)) AS lent, hard, used FROM quotas_resourcequota
    WHERE share_id IS NOT NULL AND hard IS NOT NULL
),
summed AS (
    SELECT share_id, SUM(lent) AS lendable, SUM(GREATEST(used - (hard - lent), 0)) AS taken FROM told GROUP BY share_id
)
SELECT NULL, 'cohort ' || share.cohort || '/' || COALESCE(pool.name, '*') || '/' || share.resource,
    number, is_now, should_be
FROM quotas_cohortshare share LEFT JOIN quotas_pool pool ON pool.id = share.pool_id
    LEFT JOIN summed ON summed.share_id = share.id
    CROSS JOIN LATERAL (VALUES
        ('lendable', share.lendable, COALESCE(summed.lendable, 0)),
        ('taken', share.taken, COALESCE(summed.taken, 0))
    ) AS told (number, is_now, should_be)
WHERE is_now <> should_be ORDER BY share.id, number
"""

# Per quota of an organisation: `used`, and the sum of the claims of all tenants below it.
OF_ORGANISATIONS = f"""
WITH RECURSIVE charged AS ({CHARGED}),
below AS (
    SELECT id AS top, id FROM quotas_organisation
    UNION ALL SELECT below.top, part.id FROM quotas_organisation part JOIN below ON part.parent_id = below.id
),
told AS (
    SELECT quota.id, organisation.slug || '/' || COALESCE(pool.name, '*') || '/' || quota.resource AS name, quota.used,
        COALESCE((SELECT SUM(charged.amount) FROM charged JOIN quotas_tenant tenant ON tenant.id = charged.tenant_id
            JOIN below ON below.id = tenant.organisation_id AND below.top = quota.organisation_id
            WHERE charged.resource = quota.resource AND (quota.pool_id IS NULL OR charged.pool_id = quota.pool_id)
        ), 0) AS claims
    FROM quotas_organisationquota quota JOIN quotas_organisation organisation ON organisation.id = quota.organisation_id
        LEFT JOIN quotas_pool pool ON pool.id = quota.pool_id
)
SELECT NULL, 'organisation ' || name, 'used', used, claims FROM told WHERE used <> claims ORDER BY id
"""  # noqa: S608 - likewise

# Per node: the host memory of suspended claims.
HELD = """(
    SELECT COALESCE(SUM(assignment.held_host_memory_mib), 0)
    FROM scheduling_assignment assignment JOIN nodes_gpu gpu ON gpu.id = assignment.gpu_id
    WHERE gpu.node_id = node.id AND assignment.state <> 'released'
)"""
OF_NODES = f"""
SELECT NULL, 'node ' || node.name, 'host_memory_used_mib', node.host_memory_used_mib, {HELD}
FROM nodes_node node WHERE node.host_memory_used_mib <> {HELD} ORDER BY node.id
"""  # noqa: S608 - likewise


@dataclass(frozen=True, slots=True)
class Difference:
    """One number that is not what it should be. `quota_id` is None if it is no tenant's quota."""

    quota_id: int | None
    subject: str
    number: str
    is_now: int
    should_be: int


def differences() -> list[Difference]:
    """Return all numbers that differ; none on a sound platform."""
    found = []
    with connection.cursor() as cursor:
        for statement in (OF_QUOTAS, OF_CLAIMS, OF_SHARES, OF_ORGANISATIONS, OF_NODES):
            cursor.execute(statement)
            found += [
                Difference(quota_id, subject, number, int(is_now), int(should_be))
                for quota_id, subject, number, is_now, should_be in cursor.fetchall()
            ]
    return found


@transaction.atomic
def repair_all(*, principal: Principal) -> list[Difference]:
    """Write the claims' sums into every quota that differs, with ledger entries and audit, and into every node.

    Return the differences.
    """
    found = differences()
    repair.repair_quotas(principal=principal, quota_ids={item.quota_id for item in found if item.quota_id is not None})
    with connection.cursor() as cursor:
        cursor.execute(f"UPDATE nodes_node node SET host_memory_used_mib = {HELD} WHERE host_memory_used_mib <> {HELD}")  # noqa: S608
    return found
