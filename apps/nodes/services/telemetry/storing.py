"""Storage of measurements: the frames of many nodes in one transaction."""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple

from django.db import connection, transaction
from django.utils import timezone

from agent import wire
from apps.nodes.models import Gpu, Node
from apps.nodes.providers import node_claims
from apps.nodes.services.telemetry import packing
from apps.nodes.services.telemetry.packing import Carried

# A node is lost after ten seconds without a frame, so its row need not be written every second.
SEEN_EVERY = timedelta(seconds=2)

MIB = 1 << 20

# A session's own table, neither logged nor flushed: COPY cannot skip conflicts, INSERT can.
STAGE = "CREATE TEMP TABLE IF NOT EXISTS incoming_frame (LIKE nodes_usageframe) ON COMMIT DELETE ROWS"
COPY = "COPY incoming_frame FROM STDIN (FORMAT BINARY)"
KEEP = "INSERT INTO nodes_usageframe SELECT * FROM incoming_frame ON CONFLICT DO NOTHING"
# Locked FOR SHARE until the end: a roll-up that closes a span waits for writers, and later frames are late.
CLOSING = "SELECT at FROM nodes_telemetrymark WHERE name = 'closing' FOR SHARE"
LATE = """
INSERT INTO nodes_lateframes (node_id, minute)
SELECT DISTINCT node_id, date_trunc('minute', at) FROM incoming_frame WHERE at < %s
"""


@dataclass(eq=False, slots=True)
class Source:
    """Facts about one connection's frames: its node, the node's GPUs, and its assignments."""

    node_id: int
    node_name: str
    node_uid: str
    gpu_ids: Mapping[str, int]
    # By GPU uuid.
    memory_bytes: Mapping[str, int]
    # None: query before the next frame is stored.
    carried: Mapping[str, Carried] | None = None
    asked_at: float = 0.0
    # True once a refused measurement was logged.
    warned: bool = False


# A frame may name released or unknown assignments: the database is not queried for them every second.
ASK_AGAIN_SECONDS = 2.0


class Measured(NamedTuple):
    """A frame with its source."""

    source: Source
    usage: wire.Usage


def source_of(node: Node) -> Source:
    """Return the source of a new connection."""
    rows = list(Gpu.objects.filter(node=node).values_list("uuid", "pk", "memory_mib"))
    gpu_ids = {uuid: key for uuid, key, _ in rows}
    # The agent reports bytes; the last partial MiB is cut off here.
    memory_bytes = {uuid: (memory_mib + 1) * MIB for uuid, _, memory_mib in rows}
    return Source(node.pk, node.name, str(node.uid), gpu_ids, memory_bytes)


def store(batch: Sequence[Measured]) -> None:
    """Store these frames, all or none, with only each node's own GPUs and assignments.

    A repeated frame is stored once. Raises DatabaseError.
    """
    _learn_what_is_carried(batch)
    latest = timezone.now().timestamp()
    rows = [
        packing.row(
            node_id=source.node_id,
            usage=usage,
            latest=latest,
            gpu_ids=source.gpu_ids,
            carried=source.carried or {},
        )
        for source, usage in batch
    ]
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(STAGE)
        # Django's wrapper delegates unknown methods.
        copying: Any = cursor
        with copying.copy(COPY) as copy:
            copy.write(b"".join((packing.HEADER, *rows, packing.TRAILER)))
        cursor.execute(CLOSING)
        closing = cursor.fetchone()
        cursor.execute(KEEP)
        if closing is not None:
            cursor.execute(LATE, closing)
        _touch_nodes({source.node_id for source, _ in batch})


def _touch_nodes(node_ids: Iterable[int]) -> None:
    now = timezone.now()
    # In key order: two concurrent processes must not deadlock.
    known = Node.objects.filter(pk__in=sorted(node_ids)).exclude(last_seen_at__gte=now - SEEN_EVERY)
    stale = list(known.order_by("pk").select_for_update(skip_locked=True, no_key=True).values_list("pk", flat=True))
    if stale:
        Node.objects.filter(pk__in=stale).update(last_seen_at=now)


def _learn_what_is_carried(batch: Sequence[Measured]) -> None:
    """Query the assignments of all sources with outdated knowledge, in one call."""
    now = time.monotonic()
    ask = {id(source): source for source, usage in batch if _knows_too_little(source, usage, now)}
    if not ask:
        return
    found = node_claims.get().carried(sorted({source.node_id for source in ask.values()}))
    for source in ask.values():
        source.carried, source.asked_at = found.get(source.node_id, {}), now


def _knows_too_little(source: Source, usage: wire.Usage, now: float) -> bool:
    if (carried := source.carried) is None:
        return True
    if now - source.asked_at < ASK_AGAIN_SECONDS:
        return False
    return any(item.uid not in carried for item in usage.assignments)
