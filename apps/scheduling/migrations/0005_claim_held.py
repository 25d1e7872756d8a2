"""An index for the claims that were held in a period."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("quotas", "0008_budgets"),
        ("scheduling", "0004_used_hours"),
    ]

    operations = [
        migrations.AddIndex(
            model_name="claim",
            index=models.Index(fields=["tenant", "released_at"], name="claim_held"),
        ),
    ]
