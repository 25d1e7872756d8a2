"""Sharing policies of pools."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("quotas", "0002_append_only"),
    ]

    operations = [
        migrations.AddField(
            model_name="pool",
            name="core_ceiling",
            field=models.PositiveSmallIntegerField(db_default=100, default=100),
        ),
        migrations.AddField(
            model_name="pool",
            name="parts",
            field=models.PositiveSmallIntegerField(db_default=1, default=1),
        ),
        migrations.AddField(
            model_name="pool",
            name="sharing_policy",
            field=models.CharField(
                choices=[
                    ("burst", "Burst: core_request guaranteed, up to core_limit of what others leave"),
                    ("fixed", "Fixed: core_request, no more"),
                    ("fair", "Fair: equal parts for those that want the GPU now"),
                    ("weighted", "Weighted: parts by the claims' weights"),
                    ("average", "Average: one of `parts` equal parts each; parts of nobody stay idle"),
                    ("preempt", "Preempt: as burst, but best-effort claims get only what the others leave"),
                    ("native", "Native: the driver's own time slices, no limit of compute"),
                ],
                db_default="burst",
                default="burst",
                max_length=10,
            ),
        ),
        migrations.AddConstraint(
            model_name="pool",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("sharing_policy__in", ["burst", "fixed", "fair", "weighted", "average", "preempt", "native"])
                ),
                name="pool_policy_known",
            ),
        ),
        migrations.AddConstraint(
            model_name="pool",
            constraint=models.CheckConstraint(
                condition=models.Q(("core_ceiling__gte", 1), ("core_ceiling__lte", 100)), name="pool_ceiling_in_range"
            ),
        ),
        migrations.AddConstraint(
            model_name="pool",
            constraint=models.CheckConstraint(
                condition=models.Q(("parts__gte", 1), ("parts__lte", 16)), name="pool_parts_in_range"
            ),
        ),
    ]
