"""The amounts that claims and reservations were allocated, as SQL: by the ledger, while they were on GPUs.

`HELD` is the beginning of a statement, with the parameters `begin`, `end`, `resources` (an array) and `pool` (null: all
pools). Its last table, `held`, has a row (uid, tenant_id, resource, amount, during) for each time within the two
moments in which a claim, or a reservation beside its claims, was charged an amount of a resource; `holder` and
`booking` say by whom.
"""

HELD = """
WITH holder AS MATERIALIZED (
    SELECT id, uid, tenant_id, pool_id, created_by FROM scheduling_claim
    WHERE (released_at IS NULL OR released_at > %(begin)s) AND created_at < %(end)s
        AND (%(pool)s::bigint IS NULL OR pool_id = %(pool)s::bigint)
),
booking AS MATERIALIZED (
    SELECT uid, tenant_id, pool_id, created_by, started_at, released_at FROM scheduling_reservation
    WHERE (released_at IS NULL OR released_at > %(begin)s) AND started_at < %(end)s
        AND (%(pool)s::bigint IS NULL OR pool_id = %(pool)s::bigint)
),
-- The times on GPUs. A claim with several GPUs counts while it is on any of them: its charge covers all.
placed AS (
    SELECT uid, tenant_id, unnest(range_agg(tstzrange(since, until))) AS during FROM (
        SELECT holder.uid, holder.tenant_id, assignment.created_at AS since,
            CASE WHEN assignment.state = 'released' THEN greatest(assignment.created_at, assignment.updated_at) END
                AS until
        FROM holder JOIN scheduling_assignment AS assignment ON assignment.claim_id = holder.id
        UNION ALL
        SELECT uid, tenant_id, started_at, released_at FROM booking
    ) AS span GROUP BY uid, tenant_id
),
-- The charge from each entry to the next. A claim is charged to the overall quota, to its pool's, or to both.
level AS (
    SELECT claim_uid AS uid, resource, greatest(
            sum(amount) FILTER (WHERE pool_id IS NULL) OVER entries,
            sum(amount) FILTER (WHERE pool_id IS NOT NULL) OVER entries
        ) AS amount, tstzrange(at, lead(at) OVER entries) AS during
    FROM quotas_ledgerentry
    WHERE resource = ANY(%(resources)s) AND at < %(end)s
        AND claim_uid IN (SELECT uid FROM holder UNION ALL SELECT uid FROM booking)
    WINDOW entries AS (PARTITION BY claim_uid, resource ORDER BY at, id)
),
held AS (
    SELECT level.uid, placed.tenant_id, level.resource, level.amount,
        level.during * placed.during * tstzrange(%(begin)s, %(end)s) AS during
    FROM level JOIN placed ON placed.uid = level.uid AND placed.during && level.during
    WHERE level.amount > 0
)
"""
