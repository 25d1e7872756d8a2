"""Measurements by frames: a table that is partitioned by the hour, and a view with a row for each measurement.

Raw seconds of before are not carried over: the hours that bills rest on are kept apart from them.
"""

import django.contrib.postgres.fields
import django.db.models.deletion
from django.db import migrations, models

FRAMES = """
CREATE TABLE nodes_usageframe (
    node_id bigint NOT NULL,
    at timestamptz NOT NULL,
    seq bigint NOT NULL,
    gpu_ids bigint[] NOT NULL,
    gpu_core real[] NOT NULL,
    gpu_memory bigint[] NOT NULL,
    gpu_watts real[] NOT NULL,
    gpu_celsius real[] NOT NULL,
    gpu_sm_mhz int[] NOT NULL,
    gpu_memory_mhz int[] NOT NULL,
    uids uuid[] NOT NULL,
    on_gpus bigint[] NOT NULL,
    core real[] NOT NULL,
    core_limit smallint[] NOT NULL,
    throttled real[] NOT NULL,
    memory bigint[] NOT NULL,
    memory_limit bigint[] NOT NULL,
    processes int[] NOT NULL,
    gpu_time_ms real[] NOT NULL,
    PRIMARY KEY (node_id, at, seq)
) PARTITION BY RANGE (at);
-- For what no partition was made ahead of: a clock that is wrong, a worker that was away for days.
CREATE TABLE nodes_usageframe_default PARTITION OF nodes_usageframe DEFAULT;
"""
VIEW = """
CREATE VIEW nodes_sample AS
SELECT node_id, seq, -place::int AS place, gpu_id, NULL::uuid AS assignment_uid, gpu_id AS on_gpu_id, at,
    core_percent, NULL::smallint AS core_limit_percent, NULL::real AS throttled_percent, memory_bytes,
    NULL::bigint AS memory_limit_bytes, NULL::int AS processes, NULL::real AS gpu_time_ms,
    power_watts, temperature_celsius, sm_clock_mhz, memory_clock_mhz
FROM nodes_usageframe, unnest(gpu_ids, gpu_core, gpu_memory, gpu_watts, gpu_celsius, gpu_sm_mhz, gpu_memory_mhz)
    WITH ORDINALITY AS gpu (gpu_id, core_percent, memory_bytes, power_watts, temperature_celsius, sm_clock_mhz,
        memory_clock_mhz, place)
UNION ALL
SELECT node_id, seq, place::int, NULL, assignment_uid, on_gpu_id, at,
    core_percent, core_limit_percent, throttled_percent, memory_bytes,
    memory_limit_bytes, item.processes, item.gpu_time_ms,
    NULL, NULL, NULL, NULL
FROM nodes_usageframe, unnest(uids, on_gpus, core, core_limit, throttled, memory, memory_limit, processes, gpu_time_ms)
    WITH ORDINALITY AS item (assignment_uid, on_gpu_id, core_percent, core_limit_percent, throttled_percent,
        memory_bytes, memory_limit_bytes, processes, gpu_time_ms, place);
"""


def a_list(field: models.Field) -> django.contrib.postgres.fields.ArrayField:
    return django.contrib.postgres.fields.ArrayField(base_field=field, default=list, size=None)


class Migration(migrations.Migration):
    dependencies = [("nodes", "0005_conditions")]

    operations = [
        migrations.DeleteModel(name="Sample"),
        migrations.SeparateDatabaseAndState(
            database_operations=[
                migrations.RunSQL(FRAMES, "DROP TABLE nodes_usageframe"),
                migrations.RunSQL(VIEW, "DROP VIEW nodes_sample"),
            ],
            state_operations=[
                migrations.CreateModel(
                    name="UsageFrame",
                    fields=[
                        (
                            "pk",
                            models.CompositePrimaryKey(
                                "node_id", "at", "seq", blank=True, editable=False, primary_key=True, serialize=False
                            ),
                        ),
                        ("node_id", models.BigIntegerField()),
                        ("at", models.DateTimeField()),
                        ("seq", models.BigIntegerField()),
                        ("gpu_ids", a_list(models.BigIntegerField())),
                        ("gpu_core", a_list(models.FloatField())),
                        ("gpu_memory", a_list(models.BigIntegerField())),
                        ("gpu_watts", a_list(models.FloatField(null=True))),
                        ("gpu_celsius", a_list(models.FloatField(null=True))),
                        ("gpu_sm_mhz", a_list(models.IntegerField(null=True))),
                        ("gpu_memory_mhz", a_list(models.IntegerField(null=True))),
                        ("uids", a_list(models.UUIDField())),
                        ("on_gpus", a_list(models.BigIntegerField(null=True))),
                        ("core", a_list(models.FloatField())),
                        ("core_limit", a_list(models.SmallIntegerField(null=True))),
                        ("throttled", a_list(models.FloatField(null=True))),
                        ("memory", a_list(models.BigIntegerField())),
                        ("memory_limit", a_list(models.BigIntegerField(null=True))),
                        ("processes", a_list(models.IntegerField(null=True))),
                        ("gpu_time_ms", a_list(models.FloatField(null=True))),
                    ],
                    options={"db_table": "nodes_usageframe"},
                ),
                migrations.CreateModel(
                    name="Sample",
                    fields=[
                        (
                            "pk",
                            models.CompositePrimaryKey(
                                "node_id", "at", "seq", "place", blank=True, editable=False, primary_key=True,
                                serialize=False,
                            ),
                        ),
                        ("node_id", models.BigIntegerField()),
                        ("seq", models.BigIntegerField()),
                        ("place", models.IntegerField()),
                        ("assignment_uid", models.UUIDField(null=True)),
                        ("on_gpu_id", models.BigIntegerField(null=True)),
                        ("at", models.DateTimeField()),
                        ("core_percent", models.FloatField()),
                        ("core_limit_percent", models.PositiveSmallIntegerField(null=True)),
                        ("throttled_percent", models.FloatField(null=True)),
                        ("memory_bytes", models.BigIntegerField()),
                        ("memory_limit_bytes", models.BigIntegerField(null=True)),
                        ("processes", models.PositiveIntegerField(null=True)),
                        ("gpu_time_ms", models.FloatField(null=True)),
                        ("power_watts", models.FloatField(null=True)),
                        ("temperature_celsius", models.FloatField(null=True)),
                        ("sm_clock_mhz", models.IntegerField(null=True)),
                        ("memory_clock_mhz", models.IntegerField(null=True)),
                        (
                            "gpu",
                            models.ForeignKey(
                                null=True,
                                on_delete=django.db.models.deletion.DO_NOTHING,
                                related_name="samples",
                                to="nodes.gpu",
                            ),
                        ),
                    ],
                    options={"db_table": "nodes_sample", "managed": False},
                ),
            ],
        ),
    ]  # fmt: skip
