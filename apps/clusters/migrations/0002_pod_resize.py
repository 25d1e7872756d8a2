import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("clusters", "0001_initial"),
    ]

    operations = [
        migrations.CreateModel(
            name="PodResize",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("version", models.PositiveIntegerField(default=1)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("updated_at", models.DateTimeField(auto_now=True)),
                ("words", models.JSONField(default=dict)),
                ("refusal", models.CharField(blank=True, default="", max_length=2000)),
                (
                    "told",
                    models.CharField(
                        blank=True,
                        choices=[
                            ("", "Nothing"),
                            ("pending", "Pending"),
                            ("in-force", "In Force"),
                            ("refused", "Refused"),
                        ],
                        default="",
                        max_length=10,
                    ),
                ),
                ("told_generation", models.PositiveIntegerField(default=1)),
                (
                    "container",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE, related_name="resize", to="clusters.podclaim"
                    ),
                ),
            ],
            options={
                "constraints": [
                    models.CheckConstraint(
                        condition=models.Q(("told__in", ["", "pending", "in-force", "refused"])),
                        name="resize_told_known",
                    )
                ],
            },
        ),
    ]
