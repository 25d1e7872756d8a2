"""Reading a pool's GPUs as the core wants them: two queries, whatever the size."""

from django.db.models import Count

from apps.nodes.models import Gpu
from apps.quotas.models import Pool
from apps.scheduling.core.values import GpuState, Request


def could_carry(pool: Pool, request: Request) -> bool:
    """Whether one node of the pool has the GPUs for it, were they all free: one query, up to the first such node.

    `never_fits` says the same of the whole fleet, and why; a claim that can be carried need not wait for that.
    """
    gpus = Gpu.objects.filter(node__pool=pool, memory_mib__gte=request.memory_mib)
    if request.gpu_model is not None:
        gpus = gpus.filter(model=request.gpu_model)
    if request.gpu_count == 1:
        return gpus.exists()
    return gpus.order_by("node").values("node").annotate(gpus=Count("pk")).filter(gpus__gte=request.gpu_count).exists()


def read_fleet(pool: Pool) -> list[GpuState]:
    """Every GPU of the pool, in a fixed order."""
    gpus = Gpu.objects.filter(node__pool=pool).select_related("node").order_by("node__name", "index")
    return [
        GpuState(
            uuid=gpu.uuid,
            node=gpu.node.name,
            index=gpu.index,
            model=gpu.model,
            memory_mib=gpu.memory_mib,
            core_free=gpu.core_free,
            memory_free_mib=gpu.memory_free_mib,
            schedulable=gpu.present and gpu.node.state == "ready",
        )
        for gpu in gpus
    ]
