"""Latest samples of the whole fleet, for scrapes."""

import uuid
from datetime import timedelta

from django.db import connection
from django.utils import timezone

from apps.nodes.models import Sample

# An agent reports once a second and repeats lost frames; an older frame says nothing about now.
LATELY = timedelta(seconds=10)
COLUMNS = [field.attname for field in Sample._meta.concrete_fields]  # noqa: SLF001 - Django's own documented way
# Selects the newest frame of each node first: only that one is unnested, not ten seconds of frames.
NEWEST = f"""
SELECT {", ".join(f"sample.{name}" for name in COLUMNS)} FROM (
    SELECT DISTINCT ON (node_id) node_id, at, seq FROM nodes_usageframe
    WHERE at >= %s ORDER BY node_id, at DESC, seq DESC
) AS newest
JOIN nodes_sample AS sample ON sample.node_id = newest.node_id AND sample.at = newest.at AND sample.seq = newest.seq
"""  # noqa: S608 - all names are ours


def samples() -> tuple[dict[int, Sample], dict[uuid.UUID, Sample]]:
    """Return the samples of each node's latest frame, of GPUs by key and of assignments by uid; one query."""
    with connection.cursor() as cursor:
        cursor.execute(NEWEST, [timezone.now() - LATELY])
        rows = [Sample.from_db(connection.alias, COLUMNS, row) for row in cursor.fetchall()]
    gpus = {row.gpu_id: row for row in rows if row.gpu_id is not None}
    return gpus, {row.assignment_uid: row for row in rows if row.assignment_uid is not None}
