from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("quotas", "0008_budgets"),
    ]

    operations = [
        migrations.AlterField(
            model_name="ledgerentry",
            name="kind",
            field=models.CharField(
                choices=[("set", "Set"), ("charge", "Charge"), ("refund", "Refund"), ("repair", "Repair")],
                max_length=10,
            ),
        ),
    ]
