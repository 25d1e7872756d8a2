"""Append-only ledger and audit log: the database itself refuses to change or remove a row."""

from django.db import migrations

TABLES = ("quotas_ledgerentry", "quotas_auditevent")

FUNCTION = """
CREATE FUNCTION gpucloud_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% is append-only', TG_TABLE_NAME USING ERRCODE = 'restrict_violation';
END $$;
"""


def trigger(table: str) -> str:
    return (
        f"CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON {table} "
        "FOR EACH ROW EXECUTE FUNCTION gpucloud_append_only();"
    )


class Migration(migrations.Migration):
    dependencies = [("quotas", "0001_initial")]

    operations = [
        migrations.RunSQL(FUNCTION, "DROP FUNCTION gpucloud_append_only();"),
        *[migrations.RunSQL(trigger(table), f"DROP TRIGGER append_only ON {table};") for table in TABLES],
    ]
