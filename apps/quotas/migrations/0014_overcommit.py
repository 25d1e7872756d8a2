from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("quotas", "0013_limits"),
    ]

    operations = [
        migrations.AddField(
            model_name="pool",
            name="core_overcommit_percent",
            field=models.PositiveIntegerField(null=True),
        ),
        migrations.AddField(
            model_name="pool",
            name="memory_overcommit_percent",
            field=models.PositiveIntegerField(null=True),
        ),
    ]
