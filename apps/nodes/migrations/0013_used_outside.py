from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("nodes", "0012_kubernetes_node"),
    ]

    operations = [
        migrations.AddField(
            model_name="gpu",
            name="core_outside",
            field=models.PositiveIntegerField(db_default=0, default=0),
        ),
        migrations.AddField(
            model_name="gpu",
            name="memory_outside_mib",
            field=models.PositiveBigIntegerField(db_default=0, default=0),
        ),
    ]
