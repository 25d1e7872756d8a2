"""Lightweight GPU rows for bulk reads: building model instances takes longer than the query."""

from typing import Any, NamedTuple

from django.db.models import QuerySet

from apps.nodes.models import Gpu
from apps.nodes.models.gpu import FreeCapacity


class _Columns(NamedTuple):
    """Columns of a GPU, named as the model's."""

    pk: int
    node_id: int
    uuid: str
    index: int  # type: ignore[assignment] # not where a value stands in it
    model: str
    memory_mib: int
    present: bool
    cordoned: bool
    unhealthy: str
    core_used: int
    memory_used_mib: int
    core_outside: int
    memory_outside_mib: int
    mig: dict[str, Any] | None = None


class GpuRow(_Columns, FreeCapacity):
    """One row: the columns, and what is free."""

    __slots__ = ()


def gpu_rows(gpus: QuerySet[Gpu]) -> list[GpuRow]:
    """Return the rows in the query's order."""
    return list(map(GpuRow._make, gpus.values_list(*GpuRow._fields)))
