"""Compact rounds: they share snapshots of the fleet and hold only what changed.

Records of the form before, a week's at most, are dropped: they no longer explain the present.
"""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("scheduling", "0012_reservations"),
        ("quotas", "0015_long_names"),
    ]

    operations = [
        migrations.RunSQL("DELETE FROM scheduling_round", migrations.RunSQL.noop),
        migrations.CreateModel(
            name="FleetSnapshot",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("at", models.DateTimeField(auto_now_add=True)),
                ("policy", models.CharField(max_length=20)),
                ("state", models.BinaryField(help_text="JSON, compressed by zlib.")),
                ("pool", models.ForeignKey(on_delete=models.deletion.PROTECT, related_name="+", to="quotas.pool")),
            ],
            options={"ordering": ["-pk"], "indexes": [models.Index(fields=["at"], name="snapshot_by_time")]},
        ),
        migrations.RemoveField("round", "fleet"),
        migrations.RemoveField("round", "queue"),
        migrations.RemoveField("round", "decisions"),
        migrations.AddField("round", "steps", models.JSONField()),
        migrations.AddField(
            "round",
            "base",
            models.ForeignKey(on_delete=models.deletion.CASCADE, related_name="rounds", to="scheduling.fleetsnapshot"),
        ),
    ]
