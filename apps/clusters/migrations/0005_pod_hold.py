import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("clusters", "0004_joined_node"),
        ("nodes", "0013_used_outside"),
    ]

    operations = [
        migrations.CreateModel(
            name="PodHold",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("pod_uid", models.CharField(max_length=63)),
                ("core", models.PositiveIntegerField()),
                ("memory_mib", models.PositiveBigIntegerField()),
                ("since", models.DateTimeField(auto_now_add=True)),
                (
                    "cluster",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, related_name="holds", to="clusters.cluster"
                    ),
                ),
                (
                    "gpu",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="pod_holds", to="nodes.gpu"
                    ),
                ),
            ],
            options={
                "ordering": ["pk"],
                "constraints": [
                    models.UniqueConstraint(fields=("cluster", "pod_uid", "gpu"), name="pod_hold_once_per_gpu")
                ],
            },
        ),
    ]
