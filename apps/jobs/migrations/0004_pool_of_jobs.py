import django.db.models.deletion
from django.db import migrations, models

# The foreign key's own check comes at once: a table with checks to come cannot be altered.
FILL = """
SET CONSTRAINTS ALL IMMEDIATE;
UPDATE jobs_job SET pool_id = (SELECT pool_id FROM scheduling_claim WHERE id = jobs_job.claim_id) WHERE pool_id IS NULL;
"""


class Migration(migrations.Migration):
    dependencies = [("jobs", "0003_waiting_jobs"), ("quotas", "0042_profile_quotas")]

    operations = [
        migrations.RunSQL(FILL, migrations.RunSQL.noop),
        migrations.AlterField(
            model_name="job",
            name="pool",
            field=models.ForeignKey(
                on_delete=django.db.models.deletion.PROTECT, related_name="jobs_of_pool", to="quotas.pool"
            ),
        ),
    ]
