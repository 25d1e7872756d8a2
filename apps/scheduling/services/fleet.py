"""Reading a pool's GPUs as the core wants them: two queries, whatever the size."""

from apps.nodes.models import Gpu
from apps.quotas.models import Pool
from apps.scheduling.core.values import GpuState


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
