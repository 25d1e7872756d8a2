"""Minutes of the whole fleet, so that a day's chart does not read every GPU's minutes."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("nodes", "0013_used_outside")]

    operations = [
        migrations.CreateModel(
            name="FleetMinute",
            fields=[
                ("at", models.DateTimeField(primary_key=True, serialize=False)),
                ("gpus", models.IntegerField()),
                ("core_used", models.FloatField()),
                ("memory_used", models.FloatField()),
                ("core_leased", models.FloatField(null=True)),
                ("memory_leased", models.FloatField(null=True)),
            ],
        ),
    ]
