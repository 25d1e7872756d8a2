import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("quotas", "0036_packing"),
        ("scheduling", "0031_schedule"),
    ]

    operations = [
        migrations.CreateModel(
            name="PackProfile",
            fields=[
                (
                    "claim",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        related_name="pack_profile",
                        serialize=False,
                        to="scheduling.claim",
                    ),
                ),
                ("launches", models.FloatField()),
                ("core", models.FloatField()),
                ("measured_at", models.DateTimeField()),
                ("kept", models.FloatField(null=True)),
                ("apart", models.JSONField(default=dict)),
            ],
            options={
                "ordering": ["pk"],
            },
        ),
        migrations.RemoveConstraint(
            model_name="proposal",
            name="proposal_kind_known",
        ),
        migrations.AlterField(
            model_name="proposal",
            name="kind",
            field=models.CharField(
                choices=[
                    ("lend", "Lend: best-effort claims may use a part of the guarantee while it is idle"),
                    ("give-back", "Give back: what was lent is its owner's again"),
                    ("limit", "Limit: another core_limit"),
                    ("resize", "Resize: another core_request or memory_mib"),
                    ("pack", "Pack: move to the GPU of another claim"),
                    ("unpack", "Unpack: move to a GPU of its own"),
                ],
                max_length=10,
            ),
        ),
        migrations.AddConstraint(
            model_name="proposal",
            constraint=models.CheckConstraint(
                condition=models.Q(("kind__in", ["lend", "give-back", "limit", "resize", "pack", "unpack"])),
                name="proposal_kind_known",
            ),
        ),
    ]
