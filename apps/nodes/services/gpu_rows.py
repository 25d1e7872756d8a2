"""Lightweight GPU rows for bulk reads: building model instances takes longer than the query."""

from typing import NamedTuple

from django.db.models import QuerySet

from apps.nodes.models import Gpu
from apps.nodes.models.gpu import WHOLE


class GpuRow(NamedTuple):
    """Columns of a GPU, with the model's names."""

    pk: int
    node_id: int
    uuid: str
    index: int  # type: ignore[assignment] # not where a value stands in it
    model: str
    memory_mib: int
    present: bool
    unhealthy: str
    core_used: int
    memory_used_mib: int
    core_outside: int
    memory_outside_mib: int

    @property
    def core_free(self) -> int:
        return max(0, self.core_left)

    @property
    def memory_free_mib(self) -> int:
        return max(0, self.memory_left_mib)

    @property
    def core_left(self) -> int:
        return WHOLE - self.core_used - self.core_outside

    @property
    def memory_left_mib(self) -> int:
        return self.memory_mib - self.memory_used_mib - self.memory_outside_mib


def gpu_rows(gpus: QuerySet[Gpu]) -> list[GpuRow]:
    """Return the rows in the query's order."""
    return list(map(GpuRow._make, gpus.values_list(*GpuRow._fields)))
