from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("nodes", "0033_images"),
    ]

    operations = [
        migrations.AddField(
            model_name="node",
            name="shared_instances",
            field=models.BooleanField(db_default=False, default=False),
        ),
    ]
