"""Roll-ups of telemetry: four tables that are partitioned by time, late frames, and marks of progress."""

from django.db import migrations, models

TABLE = """
CREATE TABLE {name} (
    at timestamptz NOT NULL,
    node_id bigint NOT NULL,
    gpu_id bigint NOT NULL,
    uid uuid NOT NULL,
    samples int NOT NULL,
    core real NOT NULL,
    core_most real NOT NULL,
    core_limit real,
    throttled real,
    memory bigint NOT NULL,
    memory_most bigint NOT NULL,
    memory_limit bigint,
    gpu_time_ms double precision NOT NULL,
    watts real,
    celsius_most real,
    PRIMARY KEY (at, node_id, gpu_id, uid)
) PARTITION BY RANGE (at);
CREATE TABLE {name}_default PARTITION OF {name} DEFAULT;
"""
MODELS = ("UsageTens", "UsageMinute", "UsageHour", "UsageDay")
KEY = {"blank": True, "editable": False, "primary_key": True, "serialize": False}


def model(name: str) -> migrations.CreateModel:
    return migrations.CreateModel(
        name=name,
        fields=[
            ("pk", models.CompositePrimaryKey("at", "node_id", "gpu_id", "uid", **KEY)),
            ("at", models.DateTimeField()),
            ("node_id", models.BigIntegerField()),
            ("gpu_id", models.BigIntegerField()),
            ("uid", models.UUIDField()),
            ("samples", models.IntegerField()),
            ("core", models.FloatField()),
            ("core_most", models.FloatField()),
            ("core_limit", models.FloatField(null=True)),
            ("throttled", models.FloatField(null=True)),
            ("memory", models.BigIntegerField()),
            ("memory_most", models.BigIntegerField()),
            ("memory_limit", models.BigIntegerField(null=True)),
            ("gpu_time_ms", models.FloatField()),
            ("watts", models.FloatField(null=True)),
            ("celsius_most", models.FloatField(null=True)),
        ],
        options={"abstract": False},
    )


class Migration(migrations.Migration):
    dependencies = [("nodes", "0008_self_check")]

    operations = [
        *(
            migrations.SeparateDatabaseAndState(
                database_operations=[
                    migrations.RunSQL(TABLE.format(name=f"nodes_{name.lower()}"), f"DROP TABLE nodes_{name.lower()}")
                ],
                state_operations=[model(name)],
            )
            for name in MODELS
        ),
        migrations.CreateModel(
            name="LateFrames",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("node_id", models.BigIntegerField()),
                ("minute", models.DateTimeField()),
            ],
        ),
        migrations.CreateModel(
            name="TelemetryMark",
            fields=[
                ("name", models.CharField(max_length=20, primary_key=True, serialize=False)),
                ("at", models.DateTimeField()),
            ],
        ),
    ]
