"""Sharing terms of claims."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("quotas", "0003_sharing"),
        ("scheduling", "0001_initial"),
    ]

    operations = [
        migrations.AddField(
            model_name="claim",
            name="best_effort",
            field=models.BooleanField(db_default=False, default=False),
        ),
        migrations.AddField(
            model_name="claim",
            name="weight",
            field=models.PositiveSmallIntegerField(db_default=1, default=1),
        ),
        migrations.AddConstraint(
            model_name="claim",
            constraint=models.CheckConstraint(
                condition=models.Q(("weight__gte", 1), ("weight__lte", 1000)), name="claim_weight_in_range"
            ),
        ),
    ]
