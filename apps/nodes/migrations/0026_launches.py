"""Launches of each assignment, a second, in the frames of measurements. Rows of before have an empty list: null."""

import django.contrib.postgres.fields
from django.db import migrations, models

COLUMN = "ALTER TABLE nodes_usageframe ADD COLUMN launches real[] NOT NULL DEFAULT '{}'"
# A view is replaced only by one with the same columns first.
VIEW = """
CREATE OR REPLACE VIEW nodes_sample AS
SELECT node_id, seq, -place::int AS place, gpu_id, NULL::uuid AS assignment_uid, gpu_id AS on_gpu_id, at,
    core_percent, NULL::smallint AS core_limit_percent, NULL::real AS throttled_percent, memory_bytes,
    NULL::bigint AS memory_limit_bytes, NULL::int AS processes, NULL::real AS gpu_time_ms,
    power_watts, temperature_celsius, sm_clock_mhz, memory_clock_mhz{gpu}
FROM nodes_usageframe, unnest(gpu_ids, gpu_core, gpu_memory, gpu_watts, gpu_celsius, gpu_sm_mhz, gpu_memory_mhz)
    WITH ORDINALITY AS gpu (gpu_id, core_percent, memory_bytes, power_watts, temperature_celsius, sm_clock_mhz,
        memory_clock_mhz, place)
UNION ALL
SELECT node_id, seq, place::int, NULL, assignment_uid, on_gpu_id, at,
    core_percent, core_limit_percent, throttled_percent, memory_bytes,
    memory_limit_bytes, item.processes, item.gpu_time_ms,
    NULL, NULL, NULL, NULL{assignment}
FROM nodes_usageframe, unnest(uids, on_gpus, core, core_limit, throttled, memory, memory_limit, processes, gpu_time_ms{list})
    WITH ORDINALITY AS item (assignment_uid, on_gpu_id, core_percent, core_limit_percent, throttled_percent,
        memory_bytes, memory_limit_bytes, processes, gpu_time_ms{name}, place)
"""
NEW = VIEW.format(
    gpu=", NULL::real AS launches_per_second", assignment=", item.launches_per_second", list=", launches",
    name=", launches_per_second",
)  # fmt: skip
OLD = VIEW.format(gpu="", assignment="", list="", name="")


class Migration(migrations.Migration):
    dependencies = [("nodes", "0025_move_between_nodes")]

    operations = [
        migrations.SeparateDatabaseAndState(
            database_operations=[
                migrations.RunSQL(COLUMN, "ALTER TABLE nodes_usageframe DROP COLUMN launches"),
                migrations.RunSQL(NEW, f"DROP VIEW nodes_sample; {OLD}"),
            ],
            state_operations=[
                migrations.AddField(
                    model_name="usageframe",
                    name="launches",
                    field=django.contrib.postgres.fields.ArrayField(
                        base_field=models.FloatField(null=True), default=list, size=None
                    ),
                ),
                migrations.AddField(
                    model_name="sample", name="launches_per_second", field=models.FloatField(null=True)
                ),
            ],
        ),
    ]
