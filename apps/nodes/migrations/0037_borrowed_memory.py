"""Borrowed memory in the frames of measurements and in roll-ups. Rows of before have nulls."""

import django.contrib.postgres.fields
from django.db import migrations, models

FRAME = """
ALTER TABLE nodes_usageframe ADD COLUMN gpu_borrowed bigint[], ADD COLUMN borrowed bigint[],
    ADD COLUMN memory_out bigint[], ADD COLUMN moved real[], ADD COLUMN stood real[]
"""
FRAME_BACK = """
ALTER TABLE nodes_usageframe DROP COLUMN gpu_borrowed, DROP COLUMN borrowed, DROP COLUMN memory_out,
    DROP COLUMN moved, DROP COLUMN stood
"""
ROLLED = """
ALTER TABLE nodes_{name} ADD COLUMN borrowed bigint, ADD COLUMN borrowed_most bigint, ADD COLUMN memory_out bigint,
    ADD COLUMN memory_out_most bigint, ADD COLUMN moved real, ADD COLUMN stood real
"""
ROLLED_BACK = """
ALTER TABLE nodes_{name} DROP COLUMN borrowed, DROP COLUMN borrowed_most, DROP COLUMN memory_out,
    DROP COLUMN memory_out_most, DROP COLUMN moved, DROP COLUMN stood
"""
LEVELS = ("usagetens", "usageminute", "usagehour", "usageday")
# A view is replaced only by one with the same columns first.
VIEW = """
CREATE OR REPLACE VIEW nodes_sample AS
SELECT node_id, seq, -place::int AS place, gpu_id, NULL::uuid AS assignment_uid, gpu_id AS on_gpu_id, at,
    core_percent, NULL::smallint AS core_limit_percent, NULL::real AS throttled_percent, memory_bytes,
    NULL::bigint AS memory_limit_bytes, NULL::int AS processes, NULL::real AS gpu_time_ms,
    power_watts, temperature_celsius, sm_clock_mhz, memory_clock_mhz, NULL::real AS launches_per_second{gpu}
FROM nodes_usageframe, unnest(gpu_ids, gpu_core, gpu_memory, gpu_watts, gpu_celsius, gpu_sm_mhz, gpu_memory_mhz{gpu_list})
    WITH ORDINALITY AS gpu (gpu_id, core_percent, memory_bytes, power_watts, temperature_celsius, sm_clock_mhz,
        memory_clock_mhz{gpu_name}, place)
UNION ALL
SELECT node_id, seq, place::int, NULL, assignment_uid, on_gpu_id, at,
    core_percent, core_limit_percent, throttled_percent, memory_bytes,
    memory_limit_bytes, item.processes, item.gpu_time_ms,
    NULL, NULL, NULL, NULL, item.launches_per_second{assignment}
FROM nodes_usageframe, unnest(uids, on_gpus, core, core_limit, throttled, memory, memory_limit, processes, gpu_time_ms,
    launches{list})
    WITH ORDINALITY AS item (assignment_uid, on_gpu_id, core_percent, core_limit_percent, throttled_percent,
        memory_bytes, memory_limit_bytes, processes, gpu_time_ms, launches_per_second{name}, place)
"""
NEW = VIEW.format(
    gpu=""", gpu.borrowed_bytes, NULL::bigint AS memory_out_bytes, NULL::real AS moved_bytes_per_second,
    NULL::real AS stood_percent""",
    gpu_list=", gpu_borrowed",
    gpu_name=", borrowed_bytes",
    assignment=", item.borrowed_bytes, item.memory_out_bytes, item.moved_bytes_per_second, item.stood_percent",
    list=", borrowed, memory_out, moved, stood",
    name=", borrowed_bytes, memory_out_bytes, moved_bytes_per_second, stood_percent",
)
OLD = VIEW.format(gpu="", gpu_list="", gpu_name="", assignment="", list="", name="")


def many(element: models.Field) -> django.contrib.postgres.fields.ArrayField:
    return django.contrib.postgres.fields.ArrayField(base_field=element, null=True, size=None)


FRAMES = {
    "gpu_borrowed": models.BigIntegerField(null=True),
    "borrowed": models.BigIntegerField(null=True),
    "memory_out": models.BigIntegerField(null=True),
    "moved": models.FloatField(null=True),
    "stood": models.FloatField(null=True),
}
SAMPLES = {
    "borrowed_bytes": models.BigIntegerField(null=True),
    "memory_out_bytes": models.BigIntegerField(null=True),
    "moved_bytes_per_second": models.FloatField(null=True),
    "stood_percent": models.FloatField(null=True),
}
SPANS = {
    "borrowed": models.BigIntegerField(null=True),
    "borrowed_most": models.BigIntegerField(null=True),
    "memory_out": models.BigIntegerField(null=True),
    "memory_out_most": models.BigIntegerField(null=True),
    "moved": models.FloatField(null=True),
    "stood": models.FloatField(null=True),
}


class Migration(migrations.Migration):
    dependencies = [("nodes", "0036_lends_memory")]

    operations = [
        migrations.SeparateDatabaseAndState(
            database_operations=[
                migrations.RunSQL(FRAME, FRAME_BACK),
                *(migrations.RunSQL(ROLLED.format(name=name), ROLLED_BACK.format(name=name)) for name in LEVELS),
                migrations.RunSQL(NEW, f"DROP VIEW nodes_sample; {OLD}"),
            ],
            state_operations=[
                *(
                    migrations.AddField(model_name="usageframe", name=name, field=many(element))
                    for name, element in FRAMES.items()
                ),
                *(migrations.AddField(model_name="sample", name=name, field=field) for name, field in SAMPLES.items()),
                *(
                    migrations.AddField(model_name=level, name=name, field=field.clone())
                    for level in LEVELS
                    for name, field in SPANS.items()
                ),
            ],
        ),
    ]
