"""`move` of a drain had the meaning of `requeue`, and moves claims from now on."""

from typing import Any

from django.db import migrations, models


def rename(apps: Any, _editor: object) -> None:
    apps.get_model("nodes", "Node").objects.filter(drain_mode="move").update(drain_mode="requeue")


def rename_back(apps: Any, _editor: object) -> None:
    apps.get_model("nodes", "Node").objects.filter(drain_mode="requeue").update(drain_mode="move")


class Migration(migrations.Migration):
    dependencies = [("nodes", "0026_launches")]

    operations = [
        migrations.AlterField(
            model_name="node",
            name="drain_mode",
            field=models.CharField(
                choices=[
                    ("requeue", "Requeue: they end, and return to the queue"),
                    ("suspend", "Suspend: they stop until the node is uncordoned; requeued where that fails"),
                    ("move", "Move: movable ones restart on other nodes; the others are suspended"),
                ],
                db_default="requeue",
                default="requeue",
                max_length=10,
            ),
        ),
        migrations.RunPython(rename, rename_back),
    ]
