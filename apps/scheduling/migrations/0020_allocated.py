"""Allocated and used GPU time of claims and reservations, by hour and by day."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("quotas", "0030_idle_reports_and_budget_requests"),
        ("scheduling", "0019_idle_claims"),
    ]

    operations = [
        migrations.CreateModel(
            name="AllocatedDay",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "at", "uid", blank=True, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("at", models.DateTimeField(help_text="The span's beginning.")),
                ("uid", models.UUIDField()),
                ("owner", models.CharField(max_length=200)),
                ("reserved_ms", models.BigIntegerField()),
                ("used_ms", models.BigIntegerField()),
                (
                    "pool",
                    models.ForeignKey(
                        db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name="+", to="quotas.pool"
                    ),
                ),
                (
                    "tenant",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to="quotas.tenant",
                    ),
                ),
            ],
            options={
                "indexes": [models.Index(fields=["tenant", "at"], name="allocated_day_of_tenant")],
            },
        ),
        migrations.CreateModel(
            name="AllocatedHour",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "at", "uid", blank=True, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("at", models.DateTimeField(help_text="The span's beginning.")),
                ("uid", models.UUIDField()),
                ("owner", models.CharField(max_length=200)),
                ("reserved_ms", models.BigIntegerField()),
                ("used_ms", models.BigIntegerField()),
                (
                    "pool",
                    models.ForeignKey(
                        db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name="+", to="quotas.pool"
                    ),
                ),
                (
                    "tenant",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to="quotas.tenant",
                    ),
                ),
            ],
            options={
                "indexes": [models.Index(fields=["tenant", "at"], name="allocated_hour_of_tenant")],
            },
        ),
    ]
