"""Longer object ids of audit events: those of memberships have up to 214 characters."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("quotas", "0014_overcommit"),
    ]

    operations = [
        migrations.AlterField(
            model_name="auditevent",
            name="object_id",
            field=models.CharField(max_length=255),
        ),
    ]
