"""Synthetic measurements, stored as agents' frames are."""

from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime, timedelta

from django.utils import timezone

from agent import wire
from apps.nodes.models import Gpu, LateFrames, Node, Sample, TelemetryMark, UsageFrame
from apps.nodes.services.telemetry.storing import Measured, source_of, store
from apps.scheduling.gateway import Gateway
from apps.scheduling.models import Assignment


def keep(samples: Iterable[Sample]) -> None:
    """Store these, a frame for each node and moment."""
    rows = list(samples)
    node_of_gpu = dict(Gpu.objects.values_list("pk", "node_id"))
    gpu_of: dict[object, int] = dict(Assignment.objects.values_list("uid", "gpu_id"))
    frames: dict[tuple[int, datetime], list[Sample]] = defaultdict(list)
    for row in rows:
        row.on_gpu_id = row.gpu_id or gpu_of[row.assignment_uid]
        frames[node_of_gpu[row.on_gpu_id], row.at].append(row)
    closing = TelemetryMark.objects.filter(name="closing").first()
    minutes = {(node_id, at.replace(second=0, microsecond=0)) for node_id, at in frames if closing and at < closing.at}
    LateFrames.objects.bulk_create(LateFrames(node_id=node, minute=at) for node, at in minutes)
    first = UsageFrame.objects.count() + 1
    UsageFrame.objects.bulk_create(
        frame(node_id, at, seq, some) for seq, ((node_id, at), some) in enumerate(frames.items(), first)
    )


def steady(assignment: Assignment, percent: float, *, seconds: int) -> None:
    """Store a constant core use in each of the last seconds."""
    end = timezone.now()
    moments = [end - timedelta(seconds=ago) for ago in range(1, seconds + 1)]
    keep(Sample(assignment_uid=assignment.uid, at=at, core_percent=percent, memory_bytes=0) for at in moments)


def tell(node: Node, usage: wire.Usage) -> None:
    """Send a frame of the node's agent through the gateway's own handler."""
    batch = [Measured(source_of(node), usage)]
    store(batch)
    Gateway().measured(batch)


def frame(node_id: int, at: datetime, seq: int, rows: list[Sample]) -> UsageFrame:
    gpus = [row for row in rows if row.gpu_id is not None]
    mine = [row for row in rows if row.gpu_id is None]
    return UsageFrame(
        node_id=node_id,
        at=at,
        seq=seq,
        gpu_ids=[row.gpu_id for row in gpus],
        gpu_core=[row.core_percent for row in gpus],
        gpu_memory=[row.memory_bytes for row in gpus],
        gpu_watts=[row.power_watts for row in gpus],
        gpu_celsius=[row.temperature_celsius for row in gpus],
        gpu_sm_mhz=[row.sm_clock_mhz for row in gpus],
        gpu_memory_mhz=[row.memory_clock_mhz for row in gpus],
        uids=[row.assignment_uid for row in mine],
        on_gpus=[row.on_gpu_id for row in mine],
        core=[row.core_percent for row in mine],
        core_limit=[row.core_limit_percent for row in mine],
        throttled=[row.throttled_percent for row in mine],
        memory=[row.memory_bytes for row in mine],
        memory_limit=[row.memory_limit_bytes for row in mine],
        processes=[row.processes for row in mine],
        gpu_time_ms=[row.gpu_time_ms for row in mine],
        launches=[row.launches_per_second for row in mine],
        gpu_borrowed=[row.borrowed_bytes for row in gpus],
        borrowed=[row.borrowed_bytes for row in mine],
        memory_out=[row.memory_out_bytes for row in mine],
        moved=[row.moved_bytes_per_second for row in mine],
        stood=[row.stood_percent for row in mine],
    )
