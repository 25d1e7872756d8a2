"""What was measured last, of everything at once: for scrapes."""

import uuid
from datetime import timedelta

from django.utils import timezone

from apps.nodes.models import Sample

# An agent reports once a second, and a frame that was lost comes again; an older one says nothing about now.
LATELY = timedelta(seconds=10)


def samples() -> tuple[dict[int, Sample], dict[uuid.UUID, Sample]]:
    """The latest sample of each GPU by its key, and of each assignment by its uid; one query."""
    lately = Sample.objects.filter(at__gte=timezone.now() - LATELY)
    rows = list(lately.order_by("gpu_id", "assignment_uid", "-at").distinct("gpu_id", "assignment_uid"))
    gpus = {row.gpu_id: row for row in rows if row.gpu_id is not None}
    return gpus, {row.assignment_uid: row for row in rows if row.assignment_uid is not None}
