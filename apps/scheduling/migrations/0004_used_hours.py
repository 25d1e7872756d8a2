"""Used GPU time by the hour."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("quotas", "0003_sharing"),
        ("scheduling", "0003_leases"),
    ]

    operations = [
        migrations.CreateModel(
            name="UsedHour",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("gpu_model", models.CharField(max_length=200)),
                ("hour", models.DateTimeField(help_text="Its beginning.")),
                ("gpu_time_ms", models.BigIntegerField()),
                (
                    "pool",
                    models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name="+", to="quotas.pool"),
                ),
                (
                    "tenant",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="used_hours", to="quotas.tenant"
                    ),
                ),
            ],
            options={
                "ordering": ["pk"],
                "indexes": [models.Index(fields=["hour"], name="used_hour_by_time")],
                "constraints": [
                    models.UniqueConstraint(fields=("tenant", "pool", "gpu_model", "hour"), name="used_hour_once"),
                    models.CheckConstraint(condition=models.Q(("gpu_time_ms__gte", 0)), name="used_hour_not_negative"),
                ],
            },
        ),
    ]
