import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("nodes", "0018_natural_names"),
    ]

    operations = [
        migrations.AddField(
            model_name="gpu",
            name="cordoned",
            field=models.BooleanField(
                db_default=False, default=False, help_text="Takes no new claims; those on it stay."
            ),
        ),
        migrations.CreateModel(
            name="GpuHealth",
            fields=[
                (
                    "gpu",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        related_name="health",
                        serialize=False,
                        to="nodes.gpu",
                    ),
                ),
                ("reported_at", models.DateTimeField()),
                ("temperature_celsius", models.FloatField(null=True)),
                ("ecc_corrected", models.BigIntegerField(null=True)),
                ("ecc_uncorrected", models.BigIntegerField(null=True)),
                ("last_xid", models.PositiveIntegerField(null=True)),
                ("last_xid_at", models.DateTimeField(null=True)),
                ("last_xid_meaning", models.CharField(blank=True, default="", max_length=200)),
                ("last_xid_cure", models.CharField(blank=True, default="", max_length=200)),
                ("sm_active_percent", models.FloatField(null=True)),
                ("tensor_active_percent", models.FloatField(null=True)),
                ("dram_active_percent", models.FloatField(null=True)),
                ("processes", models.JSONField(default=list)),
            ],
            options={"db_table": "nodes_gpuhealth"},
        ),
    ]
