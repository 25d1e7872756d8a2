"""Shares of GPUs: what claims and reservations have alike, and what their tenant's quotas are charged for them."""

from typing import Any, Protocol

from django.db import models

from apps.quotas.models import Resource
from apps.quotas.models.row import Row

WHOLE_GPU = 100


def amounts(*, gpu_count: int, core: int, memory_mib: int) -> dict[str, int]:
    """Return the amounts that `gpu_count` shares of this size charge, by resource."""
    return {
        Resource.CORE_PERCENT: core * gpu_count,
        Resource.MEMORY_MIB: memory_mib * gpu_count,
        Resource.VGPUS: gpu_count,
        Resource.GPUS: gpu_count if core == WHOLE_GPU else 0,
        Resource.HOST_MEMORY_MIB: 0,
    }


class Borrowing(Protocol):
    """A row with memory limits: a claim or an assignment."""

    memory_mib: Any
    memory_limit_mib: Any


def borrowable_mib(row: Borrowing) -> int:
    """Return the memory of each GPU that it may borrow; as much of its node's memory is kept for it to leave to."""
    return 0 if row.memory_limit_mib is None else int(row.memory_limit_mib - row.memory_mib)


class Share(Row):
    """The same share of each of `gpu_count` GPUs. `charged_*` is what the tenant's quotas are charged for it now."""

    gpu_count = models.PositiveSmallIntegerField(default=1)
    core_request = models.PositiveSmallIntegerField()
    memory_mib = models.PositiveBigIntegerField()
    gpu_model = models.CharField(max_length=200, null=True)
    charged_core_percent = models.PositiveIntegerField(default=0)
    charged_memory_mib = models.PositiveBigIntegerField(default=0)
    charged_vgpus = models.PositiveIntegerField(default=0)
    charged_gpus = models.PositiveIntegerField(default=0)
    charged_host_memory_mib = models.PositiveBigIntegerField(default=0, db_default=0)

    class Meta:
        abstract = True

    @property
    def amounts(self) -> dict[str, int]:
        """The amounts that all of it charges, by resource."""
        return amounts(gpu_count=self.gpu_count, core=self.core_request, memory_mib=self.memory_mib)

    @property
    def charged(self) -> dict[str, int]:
        """The amounts that the tenant's quotas are charged for it, by resource."""
        return {resource: getattr(self, f"charged_{resource}") for resource in Resource.values}
