from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("quotas", "0022_audit"),
    ]

    operations = [
        migrations.AddField(
            model_name="pool",
            name="patience_seconds",
            field=models.PositiveIntegerField(db_default=14400, default=14400, null=True),
        ),
    ]
