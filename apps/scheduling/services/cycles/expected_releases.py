"""Releases that a pool can expect, by the time limits of its running claims."""

from collections.abc import Collection
from itertools import groupby

from django.db.models import Q

from apps.quotas.models import Pool
from apps.scheduling.core.backfill import ExpectedRelease
from apps.scheduling.core.values import Request
from apps.scheduling.models import Assignment, AssignmentState, ClaimState


def ending(pool: Pool, uuids: Collection[str], now: float) -> list[ExpectedRelease]:
    """Return the placed claims of the pool on these GPUs that end by themselves; claims being released end now.

    Times are in Unix seconds.
    """
    ending = Q(claim__time_limit_seconds__isnull=False) | Q(claim__state=ClaimState.RELEASING)
    live = Assignment.objects.filter(ending, claim__pool=pool, gpu__uuid__in=uuids).exclude(
        state__in=(AssignmentState.RELEASED, AssignmentState.SUSPENDED)
    )
    rows = live.order_by("claim_id", "pk").values_list(
        "claim_id",
        "claim__state",
        "claim__assigned_at",
        "claim__time_limit_seconds",
        "claim__tenant__slug",
        "gpu__uuid",
        "held_core",
        "held_memory_mib",
        "claim__profile",
        "mig_start",
    )
    found: list[ExpectedRelease] = []
    for (key, state, begun, limit, tenant, core, memory, profile, start), parts in groupby(
        rows, lambda row: (*row[:5], *row[6:])
    ):
        gpus = tuple(row[5] for row in parts)
        ends = now
        if state != ClaimState.RELEASING:
            ends = max(ends, begun.timestamp() + limit)
        request = Request(len(gpus), core, memory, profile=profile, start=start)
        found.append(ExpectedRelease(ends, f"{key} {len(found)}", gpus, request, tenant))
    return found
