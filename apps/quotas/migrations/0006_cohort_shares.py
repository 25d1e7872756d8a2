"""Shares for the quotas of tenants that are in a cohort already."""

from django.db import migrations

SHARES = """
INSERT INTO quotas_cohortshare (cohort, pool_id, resource, lendable, taken, excess)
SELECT cohort, pool_id, resource, lendable, taken, GREATEST(taken - lendable, 0)
FROM (
    SELECT tenant.cohort, quota.pool_id, quota.resource,
           SUM(COALESCE(quota.hard, 0)) AS lendable,
           SUM(CASE WHEN quota.hard IS NULL THEN 0 ELSE quota.used END) AS taken
    FROM quotas_resourcequota quota JOIN quotas_tenant tenant ON tenant.id = quota.tenant_id
    WHERE tenant.cohort IS NOT NULL
    GROUP BY tenant.cohort, quota.pool_id, quota.resource
) sums;
"""
MEMBERS = """
UPDATE quotas_resourcequota quota
SET share_id = share.id, excess = 0
FROM quotas_tenant tenant, quotas_cohortshare share
WHERE tenant.id = quota.tenant_id AND share.cohort = tenant.cohort AND share.resource = quota.resource
  AND share.pool_id IS NOT DISTINCT FROM quota.pool_id;
"""
BORROWED = "UPDATE quotas_resourcequota SET borrowed = GREATEST(used - hard, 0);"
BACK = "UPDATE quotas_resourcequota SET share_id = NULL, borrowed = 0; DELETE FROM quotas_cohortshare;"


class Migration(migrations.Migration):
    dependencies = [("quotas", "0005_cohorts")]

    operations = [migrations.RunSQL([SHARES, MEMBERS, BORROWED], BACK)]
