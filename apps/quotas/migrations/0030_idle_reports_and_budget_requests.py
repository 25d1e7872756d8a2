"""Idle claims are reported by default; requests for a budget."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("quotas", "0029_requested"),
    ]

    operations = [
        migrations.AddField(
            model_name="quotarequest",
            name="period",
            field=models.CharField(
                choices=[("month", "Month"), ("week", "Week")],
                help_text="Of a budget's GPU-hours only.",
                max_length=10,
                null=True,
            ),
        ),
        migrations.AlterField(
            model_name="pool",
            name="idle_rule",
            field=models.CharField(
                choices=[
                    ("off", "Off: nothing is looked at"),
                    ("report", "Report: it is told of"),
                    ("shrink", "Shrink: it lends its guarantee but for a floor, until it works again"),
                    ("release", "Release: it is released after a notice, unless it works meanwhile"),
                ],
                db_default="report",
                default="report",
                max_length=10,
            ),
        ),
        migrations.AlterField(
            model_name="quotarequest",
            name="resource",
            field=models.CharField(
                choices=[
                    ("core_percent", "Core Percent"),
                    ("memory_mib", "Memory Mib"),
                    ("vgpus", "Vgpus"),
                    ("gpus", "Gpus"),
                    ("gpu_hours", "Gpu Hours"),
                ],
                max_length=20,
            ),
        ),
        migrations.AddConstraint(
            model_name="quotarequest",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    models.Q(("period__in", ["month", "week"]), ("pool", None), ("resource", "gpu_hours")),
                    models.Q(models.Q(("resource", "gpu_hours"), _negated=True), ("period", None)),
                    _connector="OR",
                ),
                name="request_period_is_a_budgets",
            ),
        ),
    ]
