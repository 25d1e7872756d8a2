import django.db.models.deletion
import django.db.models.expressions
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("quotas", "0004_audit_chain"),
    ]

    operations = [
        migrations.CreateModel(
            name="CohortShare",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("cohort", models.CharField(max_length=63)),
                (
                    "resource",
                    models.CharField(
                        choices=[
                            ("core_percent", "Core Percent"),
                            ("memory_mib", "Memory Mib"),
                            ("vgpus", "Vgpus"),
                            ("gpus", "Gpus"),
                        ],
                        max_length=20,
                    ),
                ),
                ("lendable", models.BigIntegerField(default=0)),
                ("taken", models.BigIntegerField(default=0)),
                (
                    "excess",
                    models.BigIntegerField(default=0, help_text="Taken above `lendable` when a quota was lowered."),
                ),
            ],
            options={
                "ordering": ["pk"],
            },
        ),
        migrations.RemoveConstraint(
            model_name="resourcequota",
            name="quota_never_exceeded",
        ),
        migrations.AddField(
            model_name="resourcequota",
            name="borrowing_limit",
            field=models.BigIntegerField(help_text="Null: all that the cohort leaves.", null=True),
        ),
        migrations.AddField(
            model_name="resourcequota",
            name="lending_limit",
            field=models.BigIntegerField(help_text="Null: all of `hard`.", null=True),
        ),
        migrations.AlterField(
            model_name="resourcequota",
            name="borrowed",
            field=models.BigIntegerField(default=0, help_text="Used above `hard`."),
        ),
        migrations.AlterField(
            model_name="resourcequota",
            name="excess",
            field=models.BigIntegerField(default=0, help_text="Held above what it may when that was lowered."),
        ),
        migrations.AddField(
            model_name="cohortshare",
            name="pool",
            field=models.ForeignKey(
                null=True, on_delete=django.db.models.deletion.PROTECT, related_name="+", to="quotas.pool"
            ),
        ),
        migrations.AddField(
            model_name="resourcequota",
            name="share",
            field=models.ForeignKey(
                null=True, on_delete=django.db.models.deletion.PROTECT, related_name="quotas", to="quotas.cohortshare"
            ),
        ),
        migrations.AddConstraint(
            model_name="resourcequota",
            constraint=models.CheckConstraint(
                condition=models.Q(("borrowing_limit__gte", 0), ("borrowing_limit__isnull", True), _connector="OR"),
                name="quota_borrowing_limit_not_negative",
            ),
        ),
        migrations.AddConstraint(
            model_name="resourcequota",
            constraint=models.CheckConstraint(
                condition=models.Q(("lending_limit__gte", 0), ("lending_limit__isnull", True), _connector="OR"),
                name="quota_lending_limit_not_negative",
            ),
        ),
        migrations.AddConstraint(
            model_name="resourcequota",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("hard__isnull", True),
                    (
                        "used__lte",
                        django.db.models.expressions.CombinedExpression(models.F("hard"), "+", models.F("excess")),
                    ),
                    models.Q(
                        ("share__isnull", False),
                        models.Q(
                            ("borrowing_limit__isnull", True),
                            (
                                "used__lte",
                                django.db.models.expressions.CombinedExpression(
                                    django.db.models.expressions.CombinedExpression(
                                        models.F("hard"), "+", models.F("borrowing_limit")
                                    ),
                                    "+",
                                    models.F("excess"),
                                ),
                            ),
                            _connector="OR",
                        ),
                    ),
                    _connector="OR",
                ),
                name="quota_never_exceeded",
            ),
        ),
        migrations.AddConstraint(
            model_name="cohortshare",
            constraint=models.UniqueConstraint(
                fields=("cohort", "pool", "resource"), name="share_once", nulls_distinct=False
            ),
        ),
        migrations.AddConstraint(
            model_name="cohortshare",
            constraint=models.CheckConstraint(
                condition=models.Q(("excess__gte", 0), ("lendable__gte", 0), ("taken__gte", 0)),
                name="share_amounts_not_negative",
            ),
        ),
        migrations.AddConstraint(
            model_name="cohortshare",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    (
                        "taken__lte",
                        django.db.models.expressions.CombinedExpression(models.F("lendable"), "+", models.F("excess")),
                    )
                ),
                name="share_never_exceeded",
            ),
        ),
    ]
