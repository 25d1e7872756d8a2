from django.db import migrations, models

import gpucloud.schedules


class Migration(migrations.Migration):
    dependencies = [
        ("quotas", "0035_preempt_by"),
    ]

    operations = [
        migrations.AddField(
            model_name="pool",
            name="default_schedule",
            field=models.CharField(
                blank=True, db_default="", default="", max_length=100, validators=[gpucloud.schedules.validate]
            ),
        ),
        migrations.AddField(
            model_name="pool",
            name="pack_keep_percent",
            field=models.PositiveSmallIntegerField(null=True),
        ),
        migrations.AddConstraint(
            model_name="pool",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("pack_keep_percent__isnull", True),
                    models.Q(("pack_keep_percent__gte", 50), ("pack_keep_percent__lte", 100)),
                    _connector="OR",
                ),
                name="pool_pack_keep_in_range",
            ),
        ),
    ]
