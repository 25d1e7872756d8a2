"""Chain of audit events: position and digest are written once, after which the database refuses every change."""

from django.db import migrations, models

# Before it is sealed, place and digest may be written, and nothing else; afterwards nothing at all.
SEALED_ONCE = """
DROP TRIGGER append_only ON quotas_auditevent;
CREATE TRIGGER append_only BEFORE DELETE ON quotas_auditevent
    FOR EACH ROW EXECUTE FUNCTION gpucloud_append_only();
CREATE TRIGGER sealed_once BEFORE UPDATE ON quotas_auditevent
    FOR EACH ROW WHEN (
        OLD.position IS NOT NULL OR NEW.position IS NULL OR NEW.digest IS NULL
        OR to_jsonb(NEW) - 'position' - 'digest' IS DISTINCT FROM to_jsonb(OLD) - 'position' - 'digest'
    ) EXECUTE FUNCTION gpucloud_append_only();
"""
APPEND_ONLY = """
DROP TRIGGER sealed_once ON quotas_auditevent;
DROP TRIGGER append_only ON quotas_auditevent;
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON quotas_auditevent
    FOR EACH ROW EXECUTE FUNCTION gpucloud_append_only();
"""


class Migration(migrations.Migration):
    dependencies = [
        ("quotas", "0003_sharing"),
    ]

    operations = [
        migrations.AddField(
            model_name="auditevent",
            name="digest",
            field=models.CharField(max_length=64, null=True),
        ),
        migrations.AddField(
            model_name="auditevent",
            name="position",
            field=models.BigIntegerField(null=True, unique=True),
        ),
        migrations.AddIndex(
            model_name="auditevent",
            index=models.Index(condition=models.Q(("position", None)), fields=["id"], name="audit_unsealed"),
        ),
        migrations.RunSQL(SEALED_ONCE, APPEND_ONLY),
    ]
