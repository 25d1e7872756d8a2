"""The flag of nodes with an arbiter."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("nodes", "0001_initial"),
    ]

    operations = [
        migrations.AddField(
            model_name="node",
            name="arbiter",
            field=models.BooleanField(db_default=False, default=False),
        ),
    ]
