"""Audit events of memberships name tenant and person: up to 214 characters."""

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
