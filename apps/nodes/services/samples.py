"""Storing what agents measure."""

from collections.abc import Set as AbstractSet
from datetime import UTC, datetime

from django.utils import timezone

from agent import wire
from apps.nodes.models import Gpu, Node, Sample


def store(*, node: Node, usage: wire.Usage, known: AbstractSet[str]) -> None:
    """Keep one frame: GPUs of this node only, assignments only where `known`.

    A frame that comes again is stored once.
    """
    # A clock that runs ahead must not make its samples the latest for ever.
    at = min(datetime.fromtimestamp(usage.at, tz=UTC), timezone.now())
    gpus = dict(Gpu.objects.filter(node=node).values_list("uuid", "pk"))
    rows = [
        Sample(
            gpu_id=gpus[gpu.uuid],
            at=at,
            core_percent=gpu.core_percent,
            memory_bytes=gpu.memory_bytes,
            power_watts=gpu.power_watts,
            temperature_celsius=gpu.temperature_celsius,
        )
        for gpu in usage.gpus
        if gpu.uuid in gpus
    ]
    rows += [
        Sample(
            assignment_uid=item.uid,
            at=at,
            core_percent=item.core_percent,
            core_limit_percent=item.core_limit_percent,
            throttled_percent=item.throttled_percent,
            memory_bytes=item.memory_bytes,
            memory_limit_bytes=item.memory_limit_bytes,
            processes=item.processes,
        )
        for item in usage.assignments
        if item.uid in known
    ]
    Sample.objects.bulk_create(rows, ignore_conflicts=True)
    Node.objects.filter(pk=node.pk).update(last_seen_at=timezone.now())
