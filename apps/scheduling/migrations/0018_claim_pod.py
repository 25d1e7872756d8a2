from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("scheduling", "0017_reservation_of_a_lost_node"),
    ]

    operations = [
        migrations.AddField(
            model_name="claim",
            name="pod",
            field=models.JSONField(null=True),
        ),
    ]
