"""Storage of the GPUs' health: only the latest report of each."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from django.db import transaction
from django.utils import timezone

from agent import wire
from apps.nodes.models import Gpu, GpuHealth, Node

MIB = 1 << 20
# A hotter or colder GPU is a wrong reading: it would scale every chart.
MOST_CELSIUS = 200
XID = ("last_xid", "last_xid_at", "last_xid_meaning", "last_xid_cure")
READINGS = (
    "reported_at", "temperature_celsius", "ecc_corrected", "ecc_uncorrected", "sm_active_percent",
    "tensor_active_percent", "dram_active_percent", "processes",
)  # fmt: skip


@transaction.atomic
def take_health(*, node: Node, frame: wire.Health, claims: Mapping[str, int]) -> None:
    """Store the readings of the node's own GPUs; `claims`: uid and tenant of those on the node, the only ones believed.

    A report without an XID error keeps the last one.
    """
    said = {one.uuid: one for one in frame.gpus}
    keys = dict(Gpu.objects.filter(node=node, uuid__in=said).order_by("pk").values_list("uuid", "pk"))
    now = timezone.now()
    rows = [_row(key, said[uuid], now, _processes(frame, uuid, claims)) for uuid, key in keys.items()]
    for fields, some in (
        (READINGS, [row for row in rows if row.last_xid is None]),
        (READINGS + XID, [row for row in rows if row.last_xid is not None]),
    ):
        GpuHealth.objects.bulk_create(some, update_conflicts=True, unique_fields=["gpu"], update_fields=fields)


def _row(key: int, said: wire.GpuHealth, now: datetime, processes: list[dict[str, Any]]) -> GpuHealth:
    celsius = said.temperature_celsius
    known = said.last_xid is not None and said.last_xid_at is not None
    return GpuHealth(
        gpu_id=key,
        reported_at=now,
        temperature_celsius=celsius if celsius is not None and abs(celsius) <= MOST_CELSIUS else None,
        ecc_corrected=said.ecc_corrected,
        ecc_uncorrected=said.ecc_uncorrected,
        last_xid=said.last_xid if known else None,
        last_xid_at=datetime.fromtimestamp(said.last_xid_at, tz=UTC) if known and said.last_xid_at else None,
        last_xid_meaning=said.last_xid_meaning,
        last_xid_cure=said.last_xid_cure,
        sm_active_percent=_within_whole(said.sm_active_percent),
        tensor_active_percent=_within_whole(said.tensor_active_percent),
        dram_active_percent=_within_whole(said.dram_active_percent),
        processes=processes,
    )


def _within_whole(percent: float | None) -> float | None:
    return None if percent is None else min(percent, 100.0)


def _processes(frame: wire.Health, uuid: str, claims: Mapping[str, int]) -> list[dict[str, Any]]:
    return [
        {
            "pid": one.pid,
            "command": one.command,
            "memory_mib": None if one.memory_bytes is None else one.memory_bytes // MIB,
            "claim": one.claim_uid if one.claim_uid in claims else None,
            "tenant": claims.get(one.claim_uid or ""),
        }
        for one in frame.processes
        if one.gpu_uuid == uuid
    ]
