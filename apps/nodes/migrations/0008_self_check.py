from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("nodes", "0007_lost_nodes"),
    ]

    operations = [
        migrations.AddField(
            model_name="node",
            name="checks",
            field=models.JSONField(db_default=[], default=list),
        ),
    ]
