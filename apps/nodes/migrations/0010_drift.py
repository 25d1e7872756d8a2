from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("nodes", "0009_roll_ups"),
    ]

    operations = [
        migrations.AddField(
            model_name="node",
            name="drifts",
            field=models.JSONField(db_default=[], default=list),
        ),
        migrations.AddField(
            model_name="node",
            name="repair_asked_at",
            field=models.DateTimeField(null=True),
        ),
        migrations.AddField(
            model_name="node",
            name="repair_drift",
            field=models.BooleanField(db_default=True, default=True),
        ),
    ]
