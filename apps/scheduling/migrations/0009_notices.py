"""Notices of changes from the database to the scheduler: no writer can forget one, and a rollback sends none.

Each notice is one line, `KIND ID`, delivered at the commit. The write of each second's heartbeat sends none.
"""

from django.db import migrations

FUNCTION = """
CREATE FUNCTION gpucloud_notice() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    changed jsonb;
BEGIN
    IF TG_OP = 'DELETE' THEN
        changed := to_jsonb(OLD);
    ELSE
        changed := to_jsonb(NEW);
    END IF;
    PERFORM pg_notify('gpucloud_rounds', TG_ARGV[0] || ' ' || (changed ->> TG_ARGV[1]));
    RETURN NULL;
END $$;
"""

# Ten seconds without a sign of life are an absence (`apps.nodes.models.node.FRESH`): a node is back after those.
NODE_IS_NEWS = """
OLD.version <> NEW.version OR OLD.pool_id <> NEW.pool_id OR OLD.cordoned <> NEW.cordoned OR OLD.name <> NEW.name
OR (OLD.last_seen_at IS NULL) <> (NEW.last_seen_at IS NULL)
OR NEW.last_seen_at - OLD.last_seen_at >= interval '10 seconds' OR NEW.last_seen_at < OLD.last_seen_at
"""
WAITS = "state IN ('pending', 'queued')"
# Changes that free something, or change what is allowed. Taking something frees nothing.
QUOTA_IS_NEWS = """
NEW.used < OLD.used OR NEW.hard IS DISTINCT FROM OLD.hard
OR NEW.borrowing_limit IS DISTINCT FROM OLD.borrowing_limit OR NEW.share_id IS DISTINCT FROM OLD.share_id
"""
SHARE_IS_NEWS = "NEW.taken < OLD.taken OR NEW.lendable <> OLD.lendable"

# Table, kind of the notice and its column, event, and condition.
TRIGGERS = [
    ("nodes_gpu", "gpu", "id", "INSERT OR UPDATE OR DELETE", ""),
    ("nodes_node", "node", "id", "INSERT OR DELETE", ""),
    ("nodes_node", "node", "id", "UPDATE", NODE_IS_NEWS),
    ("scheduling_claim", "claim", "id", "INSERT", f"NEW.{WAITS}"),
    ("scheduling_claim", "claim", "id", "UPDATE", f"OLD.{WAITS} OR NEW.{WAITS}"),
    ("quotas_resourcequota", "tenant", "tenant_id", "INSERT OR DELETE", ""),
    ("quotas_resourcequota", "tenant", "tenant_id", "UPDATE", QUOTA_IS_NEWS),
    ("quotas_cohortshare", "cohort", "cohort", "UPDATE", SHARE_IS_NEWS),
    ("quotas_memberlimit", "tenant", "tenant_id", "INSERT OR UPDATE OR DELETE", ""),
    ("quotas_membership", "tenant", "tenant_id", "DELETE", ""),
    ("quotas_budget", "tenant", "tenant_id", "INSERT OR UPDATE OR DELETE", ""),
    ("quotas_pool", "pool", "id", "INSERT OR UPDATE OR DELETE", ""),
]


def operation(table: str, kind: str, column: str, when: str, condition: str) -> migrations.RunSQL:
    name = f"notice_{when.split(maxsplit=1)[0].lower()}"
    guard = f"WHEN ({condition})" if condition else ""
    return migrations.RunSQL(
        f"CREATE TRIGGER {name} AFTER {when} ON {table} FOR EACH ROW {guard} "
        f"EXECUTE FUNCTION gpucloud_notice('{kind}', '{column}');",
        f"DROP TRIGGER {name} ON {table};",
    )


class Migration(migrations.Migration):
    dependencies = [
        ("scheduling", "0008_claim_user_known"),
        ("nodes", "0002_arbiter"),
        ("quotas", "0015_long_names"),
    ]

    operations = [
        migrations.RunSQL(FUNCTION, "DROP FUNCTION gpucloud_notice();"),
        *[operation(*trigger) for trigger in TRIGGERS],
    ]
