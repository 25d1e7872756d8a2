"""Requests of members, which the tenant's admins pass on."""

from django.db import migrations, models

STATES = ["requested", "open", "countered", "approved", "denied", "withdrawn", "lapsed"]


class Migration(migrations.Migration):
    dependencies = [
        ("quotas", "0028_failover"),
    ]

    operations = [
        migrations.AlterField(
            model_name="quotarequest",
            name="state",
            field=models.CharField(
                choices=[(state, state.capitalize()) for state in STATES], default="open", max_length=10
            ),
        ),
        migrations.RemoveConstraint(model_name="quotarequest", name="request_state_known"),
        migrations.AddConstraint(
            model_name="quotarequest",
            constraint=models.CheckConstraint(condition=models.Q(("state__in", STATES)), name="request_state_known"),
        ),
    ]
