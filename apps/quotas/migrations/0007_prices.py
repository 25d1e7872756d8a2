"""The price book."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("quotas", "0006_cohort_shares"),
    ]

    operations = [
        migrations.CreateModel(
            name="Price",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("version", models.PositiveIntegerField(default=1)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("updated_at", models.DateTimeField(auto_now=True)),
                ("gpu_model", models.CharField(max_length=200)),
                ("valid_from", models.DateField()),
                ("per_gpu_hour", models.DecimalField(decimal_places=6, max_digits=12)),
                (
                    "pool",
                    models.ForeignKey(
                        null=True, on_delete=django.db.models.deletion.PROTECT, related_name="prices", to="quotas.pool"
                    ),
                ),
            ],
            options={
                "ordering": ["pk"],
                "constraints": [
                    models.UniqueConstraint(
                        fields=("gpu_model", "pool", "valid_from"), name="price_once_a_day", nulls_distinct=False
                    ),
                    models.CheckConstraint(condition=models.Q(("per_gpu_hour__gte", 0)), name="price_not_negative"),
                ],
            },
        ),
    ]
