"""Budgets of GPU-hours."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("quotas", "0007_prices"),
    ]

    operations = [
        migrations.CreateModel(
            name="Budget",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("version", models.PositiveIntegerField(default=1)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("updated_at", models.DateTimeField(auto_now=True)),
                (
                    "period",
                    models.CharField(
                        choices=[("month", "Month"), ("week", "Week"), ("custom", "Custom")], max_length=10
                    ),
                ),
                ("starts_at", models.DateTimeField(null=True)),
                ("ends_at", models.DateTimeField(null=True)),
                ("gpu_hours", models.DecimalField(decimal_places=3, max_digits=14)),
                (
                    "tenant",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="budgets", to="quotas.tenant"
                    ),
                ),
            ],
            options={
                "ordering": ["pk"],
            },
        ),
        migrations.CreateModel(
            name="BudgetPeriod",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("starts_at", models.DateTimeField()),
                ("ends_at", models.DateTimeField()),
                ("counted_until", models.DateTimeField()),
                ("counted_us", models.DecimalField(decimal_places=0, default=0, max_digits=30)),
                (
                    "percent_told",
                    models.PositiveSmallIntegerField(default=0, help_text="The highest threshold that was announced."),
                ),
                (
                    "budget",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="periods", to="quotas.budget"
                    ),
                ),
            ],
            options={
                "ordering": ["pk"],
            },
        ),
        migrations.AddConstraint(
            model_name="budget",
            constraint=models.UniqueConstraint(
                fields=("tenant", "period", "starts_at"), name="budget_once", nulls_distinct=False
            ),
        ),
        migrations.AddConstraint(
            model_name="budget",
            constraint=models.CheckConstraint(
                condition=models.Q(("period__in", ["month", "week", "custom"])), name="budget_period_known"
            ),
        ),
        migrations.AddConstraint(
            model_name="budget",
            constraint=models.CheckConstraint(condition=models.Q(("gpu_hours__gte", 0)), name="budget_not_negative"),
        ),
        migrations.AddConstraint(
            model_name="budget",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(("period", "custom"), ("starts_at__lt", models.F("ends_at"))),
                    models.Q(models.Q(("period", "custom"), _negated=True), ("ends_at", None), ("starts_at", None)),
                    _connector="OR",
                ),
                name="budget_times_are_customs",
            ),
        ),
        migrations.AddConstraint(
            model_name="budgetperiod",
            constraint=models.UniqueConstraint(fields=("budget", "starts_at"), name="budget_period_once"),
        ),
    ]
