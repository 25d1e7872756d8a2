from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("nodes", "0011_audit"),
    ]

    operations = [
        migrations.AddField(
            model_name="node",
            name="kubernetes_node",
            field=models.CharField(blank=True, db_default="", default="", max_length=253),
        ),
    ]
