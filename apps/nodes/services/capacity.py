"""Allocation of GPU capacity: the conditional UPDATE is the check."""

from collections.abc import Mapping

from django.db import connection
from django.db.models import Count, F, QuerySet, Sum
from django.utils import timezone

from apps.nodes.models import Gpu, Node
from apps.nodes.models.gpu import WHOLE
from apps.quotas.models import Pool, Resource


def take(*, gpu_id: int, core: int, memory_mib: int) -> bool:
    """Allocate `core` percent and `memory_mib` of a present GPU, or return False and allocate nothing.

    Of a GPU in MIG mode only whole instances are allocated, by `take_many`.
    """
    room = Gpu.objects.filter(
        pk=gpu_id,
        present=True,
        mig__isnull=True,
        core_used__lte=WHOLE - core - F("core_outside"),
        memory_used_mib__lte=F("memory_mib") - F("memory_outside_mib") - memory_mib,
    )
    return _add(room, core_used=core, memory_used_mib=memory_mib)


def _add(gpus: QuerySet[Gpu], **amounts: int) -> bool:
    """Add to these columns, as a new version of the rows; return False if there are none."""
    sums = {column: F(column) + amount for column, amount in amounts.items()}
    return bool(gpus.update(**sums, version=F("version") + 1, updated_at=timezone.now()))


def take_many(takes: Mapping[int, tuple[int, int]]) -> bool:
    """Allocate (core, MiB) of these GPUs, by key, in one statement; return False if one lacks room.

    Then some may be allocated: the caller rolls its transaction back. Lock the rows in key order before.
    """
    rows = [(key, *takes[key]) for key in sorted(takes)]
    keys, cores, memories = (list(column) for column in zip(*rows, strict=True))
    with connection.cursor() as cursor:
        cursor.execute(
            """
            UPDATE nodes_gpu AS gpu
            SET core_used = gpu.core_used + more.core, memory_used_mib = gpu.memory_used_mib + more.memory_mib,
                version = gpu.version + 1, updated_at = %s
            FROM unnest(%s::bigint[], %s::integer[], %s::bigint[]) AS more (id, core, memory_mib)
            WHERE gpu.id = more.id AND gpu.present AND gpu.core_used <= %s - more.core - gpu.core_outside
                AND gpu.memory_used_mib <= gpu.memory_mib - gpu.memory_outside_mib - more.memory_mib
            """,
            [timezone.now(), keys, cores, memories, WHOLE],
        )
        return bool(cursor.rowcount == len(takes))


def give_back(*, gpu_id: int, core: int, memory_mib: int) -> None:
    """Free an allocation. The row's constraints refuse to free more than was allocated."""
    _add(Gpu.objects.filter(pk=gpu_id), core_used=-core, memory_used_mib=-memory_mib)


# For a statement that writes who uses it, too: take `core` and `memory_mib` of the `gpu` without a claim, or nothing.
# The row is locked for this statement only, and one that waited for it checks the row as it is then.
TAKE_OUTSIDE = f"""
    UPDATE nodes_gpu
    SET core_outside = core_outside + %(core)s, memory_outside_mib = memory_outside_mib + %(memory_mib)s,
        version = version + 1, updated_at = %(now)s
    WHERE id = %(gpu)s AND core_used <= {WHOLE} - core_outside - %(core)s
        AND memory_used_mib <= memory_mib - memory_outside_mib - %(memory_mib)s
"""  # noqa: S608


def set_outside(amounts: Mapping[int, tuple[int, int]]) -> None:
    """Set the use without a claim (core, MiB) of these GPUs, by key. Call it under the GPUs' locks.

    It is a measured fact: nothing is refused, and allocations stay.
    """
    rows = [(key, *amounts[key]) for key in sorted(amounts)]
    keys, cores, memories = ([row[place] for row in rows] for place in range(3))
    with connection.cursor() as cursor:
        cursor.execute(
            """
            UPDATE nodes_gpu AS gpu
            SET core_outside = told.core, memory_outside_mib = told.memory_mib,
                version = gpu.version + 1, updated_at = %s
            FROM unnest(%s::bigint[], %s::integer[], %s::bigint[]) AS told (id, core, memory_mib)
            WHERE gpu.id = told.id AND (gpu.core_outside, gpu.memory_outside_mib) <> (told.core, told.memory_mib)
            """,
            [timezone.now(), keys, cores, memories],
        )


def of_pool(pool: Pool) -> dict[str, int]:
    """Return the total capacity of the pool's GPUs; see `apps.quotas.providers`."""
    gpus = Gpu.objects.filter(node__pool=pool, present=True)
    sums = gpus.aggregate(count=Count("pk"), memory_mib=Sum("memory_mib", default=0))
    return {Resource.CORE_PERCENT: WHOLE * sums["count"], Resource.MEMORY_MIB: sums["memory_mib"]}


def lend(*, gpu_id: int, core: int) -> None:
    """Lend more (less if negative) of the allocated core. The row's constraints refuse impossible values."""
    _add(Gpu.objects.filter(pk=gpu_id), core_lent=core)


def borrow(*, gpu_id: int, core: int, memory_mib: int) -> bool:
    """Take free or lent core without allocating it, and allocate the memory; return False if either is short."""
    room = Gpu.objects.filter(
        pk=gpu_id,
        present=True,
        mig__isnull=True,
        core_lent__gte=F("core_used") + F("core_borrowed") + F("core_outside") + core - WHOLE,
        memory_used_mib__lte=F("memory_mib") - F("memory_outside_mib") - memory_mib,
    )
    return _add(room, core_borrowed=core, memory_used_mib=memory_mib)


def return_borrowed(*, gpu_id: int, core: int) -> None:
    """Return borrowed core."""
    _add(Gpu.objects.filter(pk=gpu_id), core_borrowed=-core)


def promise_borrowed(*, gpu_id: int, core: int) -> bool:
    """Allocate borrowed core from free core; return False if there is not enough."""
    room = Gpu.objects.filter(pk=gpu_id, present=True, core_used__lte=WHOLE - core - F("core_outside"))
    return _add(room, core_used=core, core_borrowed=-core)


def take_host_memory(*, node_id: int, memory_mib: int) -> bool:
    """Allocate memory of a node for suspended claims, or return False and allocate nothing.

    The version stays: it is the entity tag of the operators' settings, and no placement depends on this.
    """
    room = Node.objects.filter(
        pk=node_id, can_suspend=True, host_memory_used_mib__lte=F("host_memory_mib") - memory_mib
    )
    return bool(room.update(host_memory_used_mib=F("host_memory_used_mib") + memory_mib))


def give_back_host_memory(*, node_id: int, memory_mib: int) -> None:
    """Free memory of a node. The row's constraint refuses to free more than was allocated."""
    Node.objects.filter(pk=node_id).update(host_memory_used_mib=F("host_memory_used_mib") - memory_mib)
