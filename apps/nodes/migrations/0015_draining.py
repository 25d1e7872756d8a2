"""Drains of nodes."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("nodes", "0014_fleet_minute")]

    operations = [
        migrations.AddField("node", "draining_at", models.DateTimeField(null=True)),
        migrations.AddField("node", "drain_grace_seconds", models.PositiveIntegerField(null=True)),
    ]
